-- Deletes a latch, and notifies its waiters.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls (see latch_set.lua)
-- ARGV[1]  client
-- ARGV[2]  number of the call, higher than those of all earlier calls of this client for this latch
-- ARGV[3]  how many ms the record is kept
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  channel of the latch
--
-- Reply 1        deleted
-- Reply 0        it had no count, or the call is late
-- Error FOREIGN  the key holds another text than a count: it is not deleted
-- Error UNTOLD   deleted, but waiters could not be notified
--
-- A repeat of a call whose reply was lost gets the same reply, and changes nothing.

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
if not before then
  answered(record, ARGV[1], ARGV[2], '0', ARGV[3])
  return 0
end
local _, failed = done(record, ARGV[1], ARGV[2], ARGV[3], 'del', latch)
if failed then
  return failed
end
local heard = redis.pcall(ARGV[4], ARGV[5], '0')
if type(heard) == 'table' and heard.err then
  return redis.error_reply('UNTOLD ' .. heard.err)
end
return 1
