-- Changes the number of free permits, and takes some for the waiters of a process.
--
-- KEYS[1]    the semaphore: a counter of free permits, which may be below 0; a missing key means 0
-- KEYS[2]    the process's record, a text: the result of its last request (see record.lua); with a queue <KEYS[4]>:<client>: the client
--            begins with the UUID of the process
-- KEYS[3]    optional: the queue of waiting processes, a sorted set of clients in order
-- KEYS[4]    with a queue: their wants, a hash (see line.lua)
-- KEYS[5]    with a queue: when their places end, a sorted set
-- ARGV[1]    request: the number of this call and its repeats, higher than those of all earlier requests in the record; after each second
--            it is higher by about a million or more
-- ARGV[2]    the change: a word and a number: add, exists (add if the counter exists), set (if it does not), or drain. A number alone is
--            the whole request: so many are added, and nothing is wanted; or, below 0, a single waiter wants them. It is no cancellation
-- ARGV[3]    <how> <mode> <keep> <wants>. how: publish or spublish. The wants are the number of permits for each waiter, separated by commas;
--            in mode 1 of all waiters of the process, which gets a place in line for refused wants, or none if all are granted; in mode 0 they
--            are a single try; in mode 2 the request is cancelled. keep: for so many ms permits are kept for a process that was told to look
-- ARGV[4]    the semaphore's channel
--
-- Reply free      a number alone: the request was one of a number alone, and all of it was done
-- Reply result    <free>|<again>|0|<done>|<which>||: the number of free permits; if a want was refused, the ms until the next try, else -1,
--                 and 0 in a repeat; the result of the change: 1 or 0, or the number drained; the granted wants, counted from 1. It is one
--                 text, because Redis takes longer for each table
-- Error FOREIGN   the key holds another text than a number: nothing was changed
--
-- A repeat of a call whose reply was lost finds its result in the record, and changes nothing. A cancelled request returns the permits
-- it took. If it has not run yet, its change is made, but it takes nothing, and a late copy of it finds that in the record. So does a
-- copy that arrives after a later request.
--
-- The change never removes the expiry of a counter.
--
-- The record ends two minutes and one to two seconds after the last request, because calls are cancelled for a minute. The keys of the line
-- end soon after the last process in line should have asked, which is within a minute.
--
-- Redis does not roll back a failed script. So each key is read before anything is written, and the record and the number of permits are
-- written last: after an error neither has changed.

local length = KEYS[3] and redis.call('zcard', KEYS[3])

-- Usually nobody is in line, and a call that gives or wants is served at once. Each call creates the functions below anew, which takes longer
-- than all of this. Whatever else may be is left to the rest, as it was.
local sign = string.byte(ARGV[2]) -- 45 is a minus, and letters come behind the digits
if length == 0 and sign < 58 and (sign > 45 or (tonumber(redis.call('get', KEYS[1]) or '') or 0) + ARGV[2] >= 0) then
  -- include first
  local isFirst, before = first(KEYS[2], ARGV[1])
  if isFirst then
    local free = redis.pcall('incrby', KEYS[1], ARGV[2])
    if type(free) == 'number' then
      if sign > 45 and free > 0 then
        redis.pcall(string.byte(ARGV[3]) == 115 and 'spublish' or 'publish', ARGV[4], string.format('%d', free)) -- as announce
      end
      return free
    end
    undo(KEYS[2], before)
  end
end

local texts = redis.call('mget', KEYS[1], KEYS[2])
-- include announce clock counter message record line serve
local free, exists, foreign = free_of(KEYS[1], texts[1])
if foreign then
  return foreign
end
local line = open({
  counter = KEYS[1], recorded = KEYS[2], queue = KEYS[3], requests = KEYS[4], ends = KEYS[5], channel = ARGV[4], free = free, exists = exists,
  record = texts[2], request = ARGV[1], length = length or 0, now = 0, total = math.huge, soon = math.huge, change = 0, sum = 0,
  wants = {}, which = {}, rest = {},
}, ARGV[3])

local done, sum, granted = recalled(line)
if not done then
  done = sign == 45 and 1 or change(line, ARGV[2])
elseif sum and line.cancelled then
  add(line, sum)
else
  return answer(line, 0, 0, done, granted)
end

if not line.cancelled then
  line.wants = numbers_of(line.asked)
end
serve(line)
add(line, -line.sum)
if #line.rest > 0 then
  local left = redis.call('pttl', line.counter)
  line.soon = left >= 0 and math.min(line.soon, line.now + left + 1) or line.soon
end
local again, which = stand(line), table.concat(line.which, ',')
local failed = note(line, done, which, '', '')
if failed then
  return failed
end
if line.more and line.free > 0 then
  announce(line.how, line.channel, line.free, line.queue, line.length)
end
return answer(line, again, 0, done, which)
