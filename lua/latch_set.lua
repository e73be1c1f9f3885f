-- Sets the count of a latch that has none.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls: a hash, field = client, value = number and answer of its last call; and the field set, which
--          names the call that has set the latch last
-- ARGV[1]  client
-- ARGV[2]  number of the call, higher than that of any call of this client for this latch before
-- ARGV[3]  ms for which the record is kept
-- ARGV[4]  the count
-- ARGV[5]  how to publish: publish or spublish
-- ARGV[6]  channel of the latch
--
-- Reply 1        set; Redisson's waiters are told to look
-- Reply 0        it had a count, and keeps it
-- Error FOREIGN  the key holds a text that is no count
--
-- A repeat of a call whose reply was lost is answered the same, and changes nothing. So it is with one that was refused, or a copy of it
-- that comes late could act on a latch of another time. That nobody could be told is no error: whoever waits is told of the end of the
-- latch before.

local latch, record = KEYS[1], KEYS[2]
local before, foreign = count_of(latch)
if foreign then
  return foreign
end
local answer = answer_of(record, ARGV[1], ARGV[2])
if answer == '1' then
  return 1
end
if answer then
  return 0
end
if before then
  answered(record, ARGV[1], ARGV[2], '0', ARGV[3])
  return 0
end
answered(record, ARGV[1], ARGV[2], '1', ARGV[3])
redis.call('hset', record, 'set', ARGV[1] .. ':' .. ARGV[2])
redis.call('set', latch, ARGV[4])
redis.pcall(ARGV[5], ARGV[6], '1')
return 1
