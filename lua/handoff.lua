-- Moves a lock from an owner that is done with it to the next one; nobody is told, and nobody comes in between.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count
-- KEYS[2]  optional: the fencing counter, raised for the next owner
-- ARGV[1]  owner field
-- ARGV[2]  the next owner's field, which has 1 as its count then
-- ARGV[3]  the next owner's lease in ms
--
-- Reply token  held by the next owner; a number from 0 on, and 0 without KEYS[2]
-- Reply -1     not held by the owner: nothing was changed
--
-- The owner's count does not matter: whoever sends this knows that it is the last level (see release.lua).
--
-- Redis does not roll back a script that fails. So whatever can fail comes first, the first access to each key above
-- all, and the owner's field goes last. If a key cannot be accessed, nothing was written.

if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return -1
end

local token = 0
if KEYS[2] then
  token = redis.call('incr', KEYS[2])
end
redis.call('hset', KEYS[1], ARGV[2], 1)
local failed = redis.pcall('pexpire', KEYS[1], ARGV[3])
if failed ~= 1 then
  redis.call('hdel', KEYS[1], ARGV[2])
  return failed
end
redis.call('hdel', KEYS[1], ARGV[1])
return token
