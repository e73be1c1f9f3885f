-- Ends an owner's hold of a fair lock, which passes to the head of the queue or becomes free. For inner levels, release.lua lowers
-- the count.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count
-- KEYS[2]  the queue: a list of owners
-- KEYS[3]  the time at which each gives up: a sorted set of owners
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms of a grant to the head; 0: the head is notified, and asks
-- ARGV[3]  how many ms a place lasts
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
-- ARGV[6]  1: the number of receivers tells whether a waiter lives
--
-- Reply 1       released; the next waiter was notified
-- Reply 2       released; the head of the queue has the lock
-- Reply 5       as 2, and a waiter of Redisson's is behind it
-- Reply 6       as 1, and a waiter of Redisson's is behind it
-- Reply 0       not held by the owner, and not in the queue any more
-- Reply 7       as 0; the lock is free, its first waiter was notified, and a waiter of Redisson's is behind it
-- Error UNTOLD  released, but the next waiter could not be notified
--
-- A repeat of a call whose reply was lost changes nothing: if the hold has ended, it replies 0.
--
-- A grant is sent to its process alone, on the channel <unlock channel>:<client>, see message.lua. A head of Redisson's gets '0' on
-- its own channel. If the queue is empty, '0' goes to the unlock channel, for waiters of another kind of lock with this name.

local q = {
  lock = KEYS[1], list = KEYS[2], times = KEYS[3],
  place = tonumber(ARGV[3]), command = ARGV[4], channel = ARGV[5], counts = ARGV[6],
}
local owner = ARGV[1]
if redis.call('hexists', q.lock, owner) == 0 then
  redis.call('lrem', q.list, '1', owner)
  redis.call('zrem', q.times, owner)
  if redis.call('exists', q.lock) == 0 then -- the owner may have been the one who was told
    local _, redisson = told(q)
    if redisson then
      return 7
    end
  end
  return 0
end

local granted, redisson = pass(q, owner, ARGV[2])
if refused then
  return redis.error_reply('UNTOLD ' .. refused)
end
if redisson then
  if granted then
    return 5
  end
  return 6
end
if granted then
  return 2
end
return 1
