-- Gives permits back, changes their number, and takes some for the waiters of a process, each of which expires.
--
-- KEYS[1]   the semaphore: a counter of free permits, which may be below 0; none is 0
-- KEYS[2]   the record of the process, a text (see semaphore.lua)
-- KEYS[3]   the permits: a sorted set of ids, 16 bytes each, and the times at which they expire, in ms on the server's clock;
--           922337203685477 stands for never
-- KEYS[4]   the slots: a sorted set of the ids of permits that this script gave, and their numbers
-- KEYS[5]   optional: the queue of the waiting processes, a sorted set of clients in their order
-- KEYS[6]   with a queue: their places, a hash (see semaphore.lua)
-- ARGV[1]   client: the UUID of the process
-- ARGV[2]   request: a number, of this call and its repeats alone, higher than those of all requests in the record before
-- ARGV[3]   the change: add, exists (add if the counter exists), set (if it does not), drain, or total (of all permits)
-- ARGV[4]   the number for that
-- ARGV[5]   1: the wants are those of the process's waiters, so that it has a place in line for those that are refused, or none; 0: they are a single
--           try; 2: the request is cancelled
-- ARGV[6]   how to publish: publish or spublish
-- ARGV[7]   channel
-- ARGV[8]   for how many ms permits are kept for a process that was told to look
-- ARGV[9]   leases of the permits in ms, one for each want, separated by spaces, or one for all; -1: they do not expire
-- ARGV[10]  how many wants there are
-- ARGV[n]   from 11 on: these, each how many permits a waiter wants; for each so many new ids; and the ids of permits to give back
--
-- Reply {free, done, again, which, slots, given, more}  free to which: as of semaphore.lua; the slots of all permits that are granted, in their order; for
--                 each permit to give back: 1 it was, 2 it was, but had expired, 0 it is not known, or a second time there; 1 if more permits
--                 have expired, and the next call gives these back
-- Error FOREIGN   the key holds a text that is no number: nothing was changed
--
-- First, at most 500 permits that have expired are given back. So does Redisson, which knows nothing of slots. So a slot that is too high for
-- the number of all permits is a reason to look for those of permits that are gone.
--
-- The clock has begun a part of the next millisecond. So a permit expires a millisecond later than its lease says: its holder trusts in all of that.
--
-- Repeats and cancelled requests are as in semaphore.lua. A repeat never makes a lease longer. A permit is there once, whatever the record says:
-- one whose id is known is not taken again.
--
-- If the counter expires, so do the permits with it, as in Redisson.
--
-- Redis does not roll back a script that fails. So each key is read before anything is written.

local texts = redis.call('mget', KEYS[1], KEYS[2])
local free, exists, foreign = free_of(KEYS[1], texts[1])
if foreign then
  return foreign
end
local permits, numbers = KEYS[3], KEYS[4]
local held, numbered = redis.call('zcard', permits), redis.call('zcard', numbers)
local line = open({
  counter = KEYS[1], recorded = KEYS[2], queue = KEYS[5], requests = KEYS[6], free = free, exists = exists, record = texts[2], now = clock(),
  client = ARGV[1], request = ARGV[2], waits = ARGV[5] == '1', how = ARGV[6], channel = ARGV[7], keep = tonumber(ARGV[8]), wants = {},
})

-- remove takes permits out, and returns how many there were.
local function remove(ids)
  if #ids == 0 then
    return 0
  end
  numbered = numbered - redis.call('zrem', numbers, unpack(ids))
  local n = redis.call('zrem', permits, unpack(ids))
  held = held - n
  return n
end

local wants, ids, back = {}, {}, {}
local i = 11
for n = 1, tonumber(ARGV[10]) do
  wants[n] = tonumber(ARGV[i])
  i = i + 1
end
for n, want in ipairs(wants) do
  ids[n] = {}
  for m = 1, want do
    ids[n][m] = ARGV[i]
    i = i + 1
  end
end
while i <= #ARGV do
  back[#back + 1] = ARGV[i]
  i = i + 1
end

local again, more = 0, 0
local done, sum, which, slots, given = recalled(line)
if done and not (sum and ARGV[5] == '2') then
  which, slots, given = which or {}, slots or {}, given or {}
  for n = #given + 1, #back do
    given[n] = 0
  end
  return {free, done, again, which, slots, given, more}
end

if not done then
  given = {}
  local before = {}
  for n, score in ipairs(#back > 0 and redis.call('zmscore', permits, unpack(back)) or {}) do
    given[n] = (not score or before[back[n]]) and 0 or tonumber(score) > line.now and 1 or 2
    before[back[n]] = true
  end
  add(line, remove(back))
end
if ARGV[5] == '2' then
  for _, new in ipairs(ids) do
    add(line, remove(new)) -- also if the record is lost
  end
end
local expired = redis.call('zrangebyscore', permits, '-inf', line.now, 'limit', '0', '500')
add(line, remove(expired))
if #expired == 500 then
  more, line.soon = 1, line.now
end

if not done and ARGV[3] == 'total' then
  local before, n = line.free, tonumber(ARGV[4])
  add(line, n - line.free - held)
  done = (line.free ~= before or not line.exists) and 1 or 0
  if not line.exists and line.free == before then
    write(line, 'incrby', line.counter, '0')
  end
elseif not done then
  done = change(line, ARGV[3], tonumber(ARGV[4]))
end

if ARGV[5] ~= '2' then
  line.wants = wants
end
line.total = line.free + held
serve(line)

-- slot_from returns the lowest number that is free, of those from low on.
local function slot_from(low)
  local high = numbered
  if redis.call('zcount', numbers, '0', high - 1) == high then
    return high
  end
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('zcount', numbers, '0', middle) > middle then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local within, left = math.huge, -1
if #wants > 0 and ARGV[5] ~= '2' then
  left = redis.call('pttl', line.counter)
  within = left >= 0 and left + 1 or within
end
slots = {}
if line.sum > 0 then
  local leases, new, entries = {}, {}, {}
  for lease in string.gmatch(ARGV[9], '%S+') do
    leases[#leases + 1] = tonumber(lease)
  end
  for _, n in ipairs(line.which) do
    local lease = leases[n] or leases[1]
    local lasts = lease < 0 and 922337203685477 or math.min(line.now + lease + 1, 922337203685477)
    line.soon = math.min(line.soon, lasts)
    for _, id in ipairs(ids[n]) do
      new[#new + 1] = id
      entries[#entries + 1] = lasts
      entries[#entries + 1] = id
    end
  end
  add(line, -line.sum)
  add(line, line.sum - redis.call('zadd', permits, 'nx', unpack(entries)))
  local low = 0
  for n, id in ipairs(new) do
    local slot = slot_from(low)
    if slot >= line.total then
      numbered = redis.call('zinterstore', numbers, '2', numbers, permits, 'weights', '1', '0')
      slot = slot_from(0)
    end
    if redis.call('zadd', numbers, 'nx', slot, id) == 1 then
      slots[n], low, numbered = slot, slot + 1, numbered + 1
    else
      slots[n] = tonumber(redis.call('zscore', numbers, id))
    end
  end
  if left >= 0 then
    redis.call('pexpire', permits, left)
    redis.call('pexpire', numbers, left)
  end
end
if #line.rest > 0 then
  local next = redis.call('zrange', permits, '0', '0', 'withscores')[2]
  if next and tonumber(next) < 922337203685477 then
    within = math.min(within, tonumber(next) - line.now)
  end
end
again = stand(line, within)
note(line, done, slots, given)
close(line)
free, which = line.free, line.which
return {free, done, again, which, slots, given, more}
