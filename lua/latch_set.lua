-- Sets the count of a latch that has none.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls: a hash, field = client, value = number and answer of its last call; the field set names the call
--          that set the latch last
-- ARGV[1]  client
-- ARGV[2]  number of the call, higher than those of all earlier calls of this client for this latch
-- ARGV[3]  how many ms the record is kept
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  channel of the latch
-- ARGV[6]  the count
--
-- Reply 1        set; Redisson's waiters were notified to look
-- Reply 0        it had a count, and keeps it
-- Error FOREIGN  the key holds another text than a count
--
-- A repeat of a call whose reply was lost gets the same reply, and changes nothing. This includes refused calls: otherwise a late copy
-- could set a later latch. A failure to publish is no error, because waiters were notified of the previous latch's end.

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
local _, failed = done(record, ARGV[1], ARGV[2], ARGV[3], 'set', latch, ARGV[6])
if failed then
  return failed
end
redis.call('hset', record, 'set', ARGV[1] .. ':' .. ARGV[2])
redis.pcall(ARGV[4], ARGV[5], '1')
return 1
