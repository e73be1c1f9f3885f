-- Frees a lock whoever holds it, and tells one waiter.
--
-- KEYS[1]  the lock: a hash
-- ARGV[1]  how to publish: publish or spublish
-- ARGV[2]  unlock channel
--
-- Reply 1  it was held
-- Reply 0  it was free: nothing was changed or published

-- Fails with WRONGTYPE for a key that is no lock, before it could be deleted.
redis.call('hlen', KEYS[1])
if redis.call('del', KEYS[1]) == 0 then
  return 0
end
redis.call(ARGV[1], ARGV[2], '0')
return 1
