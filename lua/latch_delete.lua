-- Deletes a latch, and tells whoever waits.
--
-- KEYS[1]  the latch: its count, a decimal number
-- KEYS[2]  the record of calls (see latch_set.lua)
-- ARGV[1]  client
-- ARGV[2]  number of the call, higher than that of any call of this client for this latch before
-- ARGV[3]  ms for which the record is kept
-- ARGV[4]  the call that has set it, if only that one's is to be deleted; otherwise ''
-- ARGV[5]  how to publish: publish or spublish
-- ARGV[6]  channel of the latch
--
-- Reply 1        it is deleted
-- Reply 0        it had no count, or was set by another call
-- Error FOREIGN  the key holds a text that is no count: it is not deleted
-- Error UNTOLD   it is deleted, but whoever waits could not be told
--
-- A repeat of a call whose reply was lost is answered the same, and changes nothing.

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
if not before or ARGV[4] ~= '' and redis.call('hget', record, 'set') ~= ARGV[4] then
  answered(record, ARGV[1], ARGV[2], '0', ARGV[3])
  return 0
end
answered(record, ARGV[1], ARGV[2], '1', ARGV[3])
redis.call('del', latch)
local heard = redis.pcall(ARGV[5], ARGV[6], '0')
if type(heard) == 'table' and heard.err then
  return redis.error_reply('UNTOLD ' .. heard.err)
end
return 1
