-- Brings an owner's re-entry count down; at 0 the lock is free and one waiter is told.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count
-- ARGV[1]  owner field
-- ARGV[2]  the count that the owner has once this call succeeded; 0 ends the hold
-- ARGV[3]  lease in ms, to refresh the expiry of what is still held
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply 1  released
-- Reply 0  not held by the owner: nothing was changed
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and a
-- hold that has ended answers 0. A partial release never shortens the expiry.
--
-- A server without memory refuses hincrby, because it might need some, unless the script has
-- written before. So the expiry is written first, even if it stays as it is.
--
-- The first command reads the key, or ends the hold. If the key cannot be accessed, nothing was written.

local want = tonumber(ARGV[2])
if want == 0 then
  if redis.call('hdel', KEYS[1], ARGV[1]) == 0 then -- the key goes with its last field
    return 0
  end
  redis.call(ARGV[4], ARGV[5], '0')
  return 1
end

local held = redis.call('hget', KEYS[1], ARGV[1])
if not held then
  return 0
end
local above = tonumber(held) - want -- fails here, before anything is written, if held is no number
local left = redis.call('pttl', KEYS[1])
if left < tonumber(ARGV[3]) then
  redis.call('pexpire', KEYS[1], ARGV[3])
else
  redis.pcall('pexpire', KEYS[1], left)
end
if above > 0 then
  redis.call('hincrby', KEYS[1], ARGV[1], -above)
end
return 1
