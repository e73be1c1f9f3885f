-- Changes the time at which a permit expires, to an earlier or later one.
--
-- KEYS[1]  the permits: a sorted set (see permits.lua)
-- KEYS[2]  optional: the queue of the waiting processes
-- KEYS[3]  with a queue: their wants, a hash (see line.lua)
-- KEYS[4]  with a queue: when their places end, a sorted set
-- ARGV[1]  <how> 0 <keep> and a space, see semaphore.lua
-- ARGV[2]  the semaphore's channel
-- ARGV[3]  id of the permit
-- ARGV[4]  lease in ms, counted from now; -1: it does not expire
--
-- Reply 1  changed
-- Reply 0  it is not held, or has expired
--
-- If the permit now expires before the next look by a process in line, some get a message with the time to look. If it expires earlier than
-- before, all that are not in line are told of a permit, which they find taken, but until when.

local line = open({
  queue = KEYS[2], requests = KEYS[3], ends = KEYS[4], channel = ARGV[2], now = clock(), length = KEYS[2] and redis.call('zcard', KEYS[2]) or 0, rest = {},
}, ARGV[1])
local score = redis.call('zscore', KEYS[1], ARGV[3])
if not score or tonumber(score) <= line.now then
  return 0
end
local lease = tonumber(ARGV[4])
line.soon = lease < 0 and 922337203685477 or math.min(line.now + lease + 1, 922337203685477) -- see permits.lua
redis.call('zrem', KEYS[1], '') -- a server without memory refuses the next commands, unless the script has written before
if line.queue then
  arm(line)
end
redis.call('zadd', KEYS[1], 'xx', string.format('%d', line.soon), ARGV[3])
if line.soon < tonumber(score) then
  announce(line.how, line.channel, 1, line.queue, line.length)
end
return 1
