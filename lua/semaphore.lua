-- Changes the number of free permits, and takes some for the waiters of a process.
--
-- KEYS[1]    the semaphore: a counter of free permits, which may be below 0; a missing key means 0
-- KEYS[2]    the process's record, a text: the result of its last request (see record.lua)
-- KEYS[3]    optional: the queue of waiting processes, a sorted set of clients in order
-- KEYS[4]    with a queue: their wants, a hash (see line.lua)
-- KEYS[5]    with a queue: when their places end, a sorted set
-- ARGV[1]    client: the UUID of the process
-- ARGV[2]    request: the number of this call and its repeats, higher than those of all earlier requests in the record
-- ARGV[3]    the change: add, exists (add if the counter exists), set (if it does not), or drain
-- ARGV[4]    the number for the change
-- ARGV[5]    1: the wants are those of all waiters of the process, which gets a place in line for refused wants, or none if all are
--            granted; 0: they are a single try; 2: the request is cancelled
-- ARGV[6]    how to publish: publish or spublish
-- ARGV[7]    channel
-- ARGV[8]    how many ms permits are kept for a process that was told to look
-- ARGV[n+8]  the wants: the number of permits for each waiter
--
-- Reply {free, done, again, which}  the number of free permits; the result of the change: 1 or 0, or the number drained; if a want was
--                 refused, the ms until the next try, otherwise -1, and 0 in a repeat; the granted wants, counted from 1
-- Error FOREIGN   the key holds another text than a number: nothing was changed
--
-- A repeat of a call whose reply was lost finds its result in the record, and changes nothing. A cancelled request returns the permits
-- it took. If it has not run yet, its change is made, but it takes nothing, and a late copy of it finds that in the record. So does a
-- copy that arrives after a later request.
--
-- The change never removes the expiry of a counter.
--
-- The record ends two minutes and a second after the last request, because calls are cancelled for a minute. The keys of the line
-- end soon after the last process in line should have asked, which is within a minute.
--
-- Redis does not roll back a failed script. So each key is read before anything is written, and the record and the number of permits are
-- written last: after an error neither has changed.

local texts = redis.call('mget', KEYS[1], KEYS[2])
local length = KEYS[3] and redis.call('zcard', KEYS[3])

-- include announce

-- Usually nobody is in line, and the wanted permits are free. Each call creates the functions below anew, which takes longer than all
-- of this.
if length == 0 and ARGV[3] == 'add' and ARGV[5] ~= '2' and string.match(texts[1] or '', '^-?%d+$') then
  local n, sum, which = tonumber(ARGV[4]), 0, {}
  for i = 1, #ARGV - 8 do
    sum, which[i] = sum + ARGV[i + 8], i
  end
  local free = texts[1] + n - sum
  local last = string.match(texts[2] or '', '^%d+')
  if (free >= 0 or sum == 0) and (not last or tonumber(last) < tonumber(ARGV[2])) then
    free = redis.pcall('incrby', KEYS[1], n - sum)
    if type(free) == 'number' then
      local failed = redis.pcall('set', KEYS[2], ARGV[2] .. '|' .. sum .. '|1|' .. table.concat(which, ',') .. '||', 'px', '121000')
      if failed.err then
        redis.call('incrby', KEYS[1], sum - n)
        return failed
      end
      if n > 0 and free > 0 then
        announce(ARGV[6], ARGV[7], free, true, 0)
      end
      local done, again = 1, -1
      return {free, done, again, which}
    end
  end
end

-- include clock counter message record line
local free, exists, foreign = free_of(KEYS[1], texts[1])
if foreign then
  return foreign
end
local line = open({
  counter = KEYS[1], recorded = KEYS[2], queue = KEYS[3], requests = KEYS[4], ends = KEYS[5], free = free, exists = exists, record = texts[2],
  length = length,
  client = ARGV[1], request = ARGV[2], waits = ARGV[5] == '1', how = ARGV[6], channel = ARGV[7], keep = tonumber(ARGV[8]), wants = {},
})

local again = 0
local done, sum, which = recalled(line)
if not done then
  done = change(line, ARGV[3], tonumber(ARGV[4]))
elseif sum and ARGV[5] == '2' then
  add(line, sum)
else
  which = which or {}
  return {free, done, again, which}
end

if ARGV[5] ~= '2' then
  for i = 1, #ARGV - 8 do
    line.wants[i] = tonumber(ARGV[i + 8])
  end
end
serve(line)
add(line, -line.sum)
if #line.rest > 0 then
  local left = redis.call('pttl', line.counter)
  line.soon = left >= 0 and math.min(line.soon, line.now + left + 1) or line.soon
end
again = stand(line)
local failed = note(line, done)
if failed then
  return failed
end
if line.more and line.free > 0 then
  announce(line.how, line.channel, line.free, line.queue, line.length)
end
free, which = line.free, line.which
return {free, done, again, which}
