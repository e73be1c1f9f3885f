-- Ends a hold, and leaves the lock to a ticket until its time is over: whoever has that goes on with the lock (see adopt.lua).
--
-- KEYS[1]  the lock: a hash, field = owner, value = count (see acquire.lua); or that of a read/write lock (see read_acquire.lua)
-- ARGV[1]  owner field
-- ARGV[2]  field of the ticket, as which nobody else has held a lock or will
-- ARGV[3]  for how many ms the ticket has the lock
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply 1        the ticket has the lock, and whoever waits is told
-- Reply 3        the same, and several listen
-- Reply 0        neither the owner nor the ticket has it
-- Error READERS  readers are in the section of the writer: nothing was changed
-- Error UNTOLD   the ticket has the lock, but whoever waits could not be told
--
-- A repeat of a call whose reply was lost finds the ticket's field, and changes nothing. One that comes when the lock was adopted finds neither.
--
-- Whoever waits was told how long the lease of the owner lasts, which may be longer than the ticket's time. So all are told by '01' to ask again,
-- see release.lua.
--
-- Redis does not roll back a script that fails. So the ticket's field is written beside the owner's, which goes last.

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
