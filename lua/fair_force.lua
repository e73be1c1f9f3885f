-- Takes a fair lock from any holder, and passes it to the head of its queue.
--
-- KEYS[1]  the lock: a hash
-- KEYS[2]  the queue: a list of owners
-- KEYS[3]  the time at which each gives up: a sorted set of owners
-- ARGV[1]  lease in ms of a grant to the head; 0: the head is notified, and asks
-- ARGV[2]  how many ms a place lasts
-- ARGV[3]  how to publish: publish or spublish
-- ARGV[4]  unlock channel
-- ARGV[5]  1: the number of receivers tells whether a waiter lives
-- ARGV[6]  and more: the owners; none: any
--
-- Reply 1        it was held
-- Reply 0        it was free, or held by another owner: nothing was changed or published
-- Error FOREIGN  the key holds another hash than a lock: nothing was changed or published

local q = {
  lock = KEYS[1], list = KEYS[2], times = KEYS[3],
  place = tonumber(ARGV[2]), command = ARGV[3], channel = ARGV[4], counts = ARGV[5],
}
local fields = redis.call('hrandfield', q.lock, '2') -- other kinds of locks have more than one
local foreign = owner_of(fields, q.lock)
if foreign then
  return foreign
end
if not only(fields, 1, ARGV[6] and 6) or redis.call('del', q.lock) == 0 then
  return 0
end
pass(q, '', ARGV[1])
return 1
