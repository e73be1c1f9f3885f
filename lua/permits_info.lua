-- Reads a semaphore with expiring permits. It changes nothing.
--
-- KEYS[1]  the semaphore: a counter
-- KEYS[2]  the permits: a sorted set (see permits.lua)
-- ARGV[1]  optional: id of a permit
--
-- Reply {exists, free, held, left}  1 if there is a counter; the number of free permits, including expired ones; the number of held
--               permits; the minimum ms that the permit with that id is held: -1 it does not expire, -2 it is not held
-- Error FOREIGN  the key holds another text than a number

local free, exists, foreign = free_of(KEYS[1])
if foreign then
  return foreign
end
local now = string.format('%d', clock())
free = free + redis.call('zcount', KEYS[2], '-inf', now)
local held = redis.call('zcount', KEYS[2], '(' .. now, '+inf')
local score = ARGV[1] and tonumber(redis.call('zscore', KEYS[2], ARGV[1]) or 0) or 0
local left = score > tonumber(now) and score - now - 1 or -2
if score >= 922337203685477 then
  left = -1
end
exists = exists and 1 or 0
return {exists, free, held, left}
