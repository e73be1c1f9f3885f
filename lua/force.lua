-- Takes a lock from any holder, and notifies one waiter.
--
-- KEYS[1]  the lock: a hash
-- ARGV[1]  how to publish: publish or spublish
-- ARGV[2]  unlock channel
-- ARGV[3]  and more: the owners; none: any
--
-- Reply 1        it was held
-- Reply 0        it was free, or held by another owner: nothing was changed or published
-- Error FOREIGN  the key holds another hash than a lock: nothing was changed or published
--
-- The key is read before it is deleted. If it cannot be accessed, nothing was written.

local fields = redis.call('hrandfield', KEYS[1], '2') -- other kinds of locks have more than one
local foreign = owner_of(fields, KEYS[1])
if foreign then
  return foreign
end
if not only(fields, 1, ARGV[3] and 3) or redis.call('del', KEYS[1]) == 0 then
  return 0
end
redis.call(ARGV[1], ARGV[2], '0')
return 1
