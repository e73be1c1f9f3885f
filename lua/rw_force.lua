-- Takes one side of a read/write lock from its holders, and notifies all waiters.
--
-- KEYS[1]  the lock: a hash (see read_acquire.lua)
-- ARGV[1]  the side: the mode read or write
-- ARGV[2]  how to publish: publish or spublish
-- ARGV[3]  unlock channel
-- ARGV[4]  and more: the owners; none: any
--
-- Reply 1        it was held
-- Reply 0        it was free, or held on the other side or by another owner: nothing was changed or published
-- Error FOREIGN  the key holds another hash than a lock: nothing was changed or published
--
-- The hash is read first, and then deleted with the hold keys.

local lock = KEYS[1]
local foreign = owner_of(redis.call('hrandfield', lock, '2'), lock)
if foreign then
  return foreign
end
if redis.call('hget', lock, 'mode') ~= ARGV[1] then
  return 0
end
local all = redis.call('hgetall', lock)
if not only(all, 2, ARGV[4] and 4) then
  return 0
end
for i = 1, #all, 2 do
  for level = 1, tonumber(all[i + 1]) or 0 do
    redis.call('del', hold_key(lock, all[i], level))
  end
end
redis.call('del', lock)
redis.call(ARGV[2], ARGV[3], '00') -- see read_release.lua
redis.call(ARGV[2], ARGV[3], '1')
return 1
