-- Reads a latch for a waiter. It changes nothing.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls (see latch_set.lua)
--
-- Reply {count, ttl, set}  the count as text; PTTL of the latch; the call that set it last, '' if unknown. If set has changed, the
--                          latch had no count in between
-- Reply 0                  it has no count, so nobody has to wait
-- Error FOREIGN            the key holds another text than a count

local count, foreign = count_of(KEYS[1])
if foreign then
  return foreign
end
if not count then
  return 0
end
local ttl, set = redis.call('pttl', KEYS[1]), redis.call('hget', KEYS[2], 'set') or ''
return {count, ttl, set}
