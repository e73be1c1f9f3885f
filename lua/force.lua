-- Frees a lock whoever holds it, and tells one waiter.
--
-- KEYS[1]  the lock: a hash
-- ARGV[1]  how to publish: publish or spublish
-- ARGV[2]  unlock channel
--
-- Reply 1        it was held
-- Reply 0        it was free: nothing was changed or published
-- Error FOREIGN  the key holds a hash that is no lock: nothing was changed or published
--
-- A look at the key comes before its deletion. If the key cannot be accessed, nothing was written.

local foreign = owner_of(redis.call('hrandfield', KEYS[1], '2'))
if foreign then
  return foreign
end
if redis.call('del', KEYS[1]) == 0 then
  return 0
end
redis.call(ARGV[1], ARGV[2], '0')
return 1
