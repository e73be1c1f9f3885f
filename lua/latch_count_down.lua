-- Counts a latch down. At 0 it deletes the latch and notifies its waiters.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls (see latch_set.lua)
-- ARGV[1]  client
-- ARGV[2]  number of the call, higher than those of all earlier calls of this client for this latch
-- ARGV[3]  how many ms the record is kept
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  channel of the latch
-- ARGV[6]  the number to subtract
--
-- Reply 1        counted
-- Reply 0        it has no count, or the call is late
-- Error FOREIGN  the key holds another text than a count
-- Error UNTOLD   counted, but waiters could not be notified
--
-- A repeat of a call whose reply was lost gets the same reply, and changes nothing. A latch that was set to 0 is deleted without a
-- message, because nobody waits for it.
--
-- Redis does not roll back a failed script. So the record is written first, and forgotten if the count cannot be written: after an error
-- nothing was counted, unless only the message failed.

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
local left, failed = done(record, ARGV[1], ARGV[2], ARGV[3], 'decrby', latch, ARGV[6])
if failed then
  return failed
end
if left > 0 then
  return 1
end
failed = redis.pcall('del', latch)
if type(failed) == 'table' then
  redis.call('decrby', latch, '-' .. ARGV[6])
  forget(record, ARGV[1], ARGV[2])
  return failed
end
if tonumber(before) > 0 then
  local heard = redis.pcall(ARGV[4], ARGV[5], '0')
  if type(heard) == 'table' and heard.err then
    return redis.error_reply('UNTOLD ' .. heard.err)
  end
end
return 1
