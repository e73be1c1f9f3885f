-- Ends a hold, and leaves the lock to a ticket for a limited time. The ticket's recipient continues with the lock (see adopt.lua).
--
-- KEYS[1]  the lock: a hash, field = owner, value = count (see acquire.lua); or a read/write lock's hash (see read_acquire.lua)
-- ARGV[1]  owner field
-- ARGV[2]  field of the ticket, never used for another hold
-- ARGV[3]  the ticket's time in ms
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply 1        the ticket has the lock, and waiters were notified
-- Reply 3        the same, and several listen
-- Reply 0        neither the owner nor the ticket has it
-- Error READERS  readers are in the writer's section: nothing was changed
-- Error UNTOLD   the ticket has the lock, but waiters could not be notified
--
-- A repeat of a call whose reply was lost finds the ticket's field, and changes nothing. After the adoption it finds neither field.
--
-- Waiters know the owner's remaining lease, which may be longer than the ticket's time. So '01' makes all of them ask again, see
-- release.lua.
--
-- Redis does not roll back a failed script. So the ticket's field is written while the owner's exists, which is deleted last.

local lock, owner, ticket = KEYS[1], ARGV[1], ARGV[2]

if redis.call('hexists', lock, owner) == 0 then
  if redis.call('hexists', lock, ticket) == 1 then
    return 1
  end
  return 0
end
if redis.call('hexists', lock, 'mode') == 1 and readers(lock, owner) > 0 then
  return redis.error_reply('READERS readers are in the section of the writer')
end

redis.call('hdel', lock, '') -- see release.lua
local failed = redis.pcall('hset', lock, ticket, '1')
if type(failed) == 'number' then
  failed = redis.pcall('pexpire', lock, ARGV[3])
  if failed ~= 1 then
    redis.call('hdel', lock, ticket)
  end
end
if failed ~= 1 then
  return failed
end
redis.call('hdel', lock, owner)
local heard = redis.pcall(ARGV[4], ARGV[5], '01')
if type(heard) ~= 'number' then
  return redis.error_reply('UNTOLD ' .. heard.err)
end
if heard > 1 then
  return 3
end
return 1
