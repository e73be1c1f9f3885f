-- Takes over a lock that was left to a ticket (see export.lua). No other owner can get it in between.
--
-- KEYS[1]  the lock, as in export.lua
-- KEYS[2]  optional: the fencing counter, raised unless this is a repeat
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms
-- ARGV[3]  field of the ticket
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply token   held by the owner; 0 or more, and 0 without a counter
-- Reply -1      the ticket does not have the lock: it was used, or has expired
-- Error TOKEN   the counter gives no token, see raise.lua: nothing was changed
--
-- A repeat of a call whose reply was lost finds the owner's field, and changes only the expiry. A ticket's field is never written
-- twice, so a repeat after the owner's unlock finds neither field.
--
-- Waiters know the ticket's remaining time, which may be longer than the lease. So '01' makes all of them ask again: otherwise they
-- would oversleep if the owner died. A failure to publish is no error, because the lock is held.
--
-- Redis does not roll back a failed script. So the counter comes first, and the ticket's field is deleted last.

local lock, owner, ticket, fence = KEYS[1], ARGV[1], ARGV[3], KEYS[2]
local ttl = redis.call('pttl', lock)

if redis.call('hexists', lock, owner) == 1 then
  if ttl < tonumber(ARGV[2]) then
    redis.call('pexpire', lock, ARGV[2])
  end
  local token = tonumber(fence and redis.call('get', fence) or 0)
  return token
end
if redis.call('hexists', lock, ticket) == 0 then
  return -1
end
local token = 0
if fence then
  token = raise(fence)
  if type(token) == 'table' then
    return token
  end
end

redis.call('hdel', lock, '') -- see release.lua
local failed = redis.pcall('hset', lock, owner, '1')
if type(failed) == 'number' then
  failed = redis.pcall('pexpire', lock, ARGV[2])
  if failed ~= 1 then
    redis.call('hdel', lock, owner)
  end
end
if failed ~= 1 then
  return failed
end
redis.call('hdel', lock, ticket)
if ttl > tonumber(ARGV[2]) then
  redis.pcall(ARGV[4], ARGV[5], '01')
end
return token
