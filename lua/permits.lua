-- Returns expiring permits, changes their number, and takes some for the waiters of a process.
--
-- KEYS[1]   the semaphore: a counter of free permits, which may be below 0; a missing key means 0
-- KEYS[2]   the process's record, a text (see semaphore.lua)
-- KEYS[3]   the permits: a sorted set of ids, 16 bytes each, and the times at which they expire, in ms on the server's clock;
--           922337203685477 means never
-- KEYS[4]   the slots: a sorted set of the ids of permits issued by this script, and their slot numbers
-- KEYS[5]   optional: the queue of waiting processes, a sorted set of clients in order
-- KEYS[6]   with a queue: their wants, a hash (see line.lua)
-- KEYS[7]   with a queue: when their places end, a sorted set
-- ARGV[1]   client: the UUID of the process
-- ARGV[2]   request: the number of this call and its repeats, higher than those of all earlier requests in the record
-- ARGV[3]   the change: add, exists (add if the counter exists), set (if it does not), drain, or total (of all permits)
-- ARGV[4]   the number for the change
-- ARGV[5]   1: the wants are those of all waiters of the process, which gets a place in line for refused wants, or none if all are
--           granted; 0: they are a single try; 2: the request is cancelled
-- ARGV[6]   how to publish: publish or spublish
-- ARGV[7]   channel
-- ARGV[8]   how many ms permits are kept for a process that was told to look
-- ARGV[9]   leases of the permits in ms, separated by spaces, one per want or one for all; -1: they do not expire
-- ARGV[10]  the number of wants
-- ARGV[n]   from 11 on: the wants, each the number of permits for a waiter; that many new ids for each; the ids of permits to return
--
-- Reply {free, done, again, which, slots, given, more}  free to which: as in semaphore.lua; the slots of all granted permits in order;
--                 for each permit to return: 1 it was returned, 2 the same, but it had expired, 0 it is unknown or listed twice; 1 if
--                 more permits have expired, which the next call returns
-- Error FOREIGN   the key holds another text than a number: nothing was changed
--
-- The script first returns at most 500 expired permits. Redisson does that, too, but ignores slots. So if a slot is too high for the
-- number of all permits, the script looks for slots whose permits are gone.
--
-- The clock's millisecond has partly passed. So a permit expires a millisecond later than its lease says: its holder relies on the
-- whole lease.
--
-- Repeats and cancelled requests are as in semaphore.lua. A repeat never extends a lease. A permit exists once, whatever the record
-- says: a known id is not taken again.
--
-- If the counter expires, the permits expire with it, as in Redisson.
--
-- Redis does not roll back a failed script. So each key is read before anything is written, the record and the number of permits are
-- written last, and a failed call takes back what it did to the permits.

local texts = redis.call('mget', KEYS[1], KEYS[2])
local free, exists, foreign = free_of(KEYS[1], texts[1])
if foreign then
  return foreign
end
local permits, numbers = KEYS[3], KEYS[4]
local held, numbered = redis.call('zcard', permits), redis.call('zcard', numbers)
local line = open({
  counter = KEYS[1], recorded = KEYS[2], queue = KEYS[5], requests = KEYS[6], ends = KEYS[7], free = free, exists = exists, record = texts[2], now = clock(),
  client = ARGV[1], request = ARGV[2], waits = ARGV[5] == '1', how = ARGV[6], channel = ARGV[7], keep = tonumber(ARGV[8]), wants = {},
  length = KEYS[5] and redis.call('zcard', KEYS[5]),
})

-- remove returns permits, and when each of them was to expire.
local removed, new = {}, {} -- for take_back
local function remove(ids)
  if #ids == 0 then
    return ids
  end
  local ends, slots = redis.call('zmscore', permits, unpack(ids)), redis.call('zmscore', numbers, unpack(ids))
  numbered = numbered - redis.call('zrem', numbers, unpack(ids))
  removed[#removed + 1] = {key = numbers, ids = ids, scores = slots}
  local n = redis.call('zrem', permits, unpack(ids))
  removed[#removed + 1] = {key = permits, ids = ids, scores = ends}
  held = held - n
  add(line, n)
  return ends
end

-- take_back undoes what a failed call has done to the permits.
local function take_back()
  if #new > 0 then
    redis.call('zrem', numbers, unpack(new))
    redis.call('zrem', permits, unpack(new))
  end
  for _, from in ipairs(removed) do
    for n, id in ipairs(from.ids) do
      if from.scores[n] then
        redis.call('zadd', from.key, from.scores[n], id)
      end
    end
  end
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

-- slot_from returns the lowest free slot from low on.
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

-- perform makes the changes. It fails, or returns an error, before the record and the number of permits are written.
local function perform()
  local expired = redis.call('zrangebyscore', permits, '-inf', line.now, 'limit', '0', '500')
  if (#wants > 0 or line.length > 0) and #back + #expired > 0 then
    write(line, 'zadd', permits, 'xx', '0', '') -- take_back may need the right, and must not be what lacks it
  end
  if not done then
    given = {}
    local before = {}
    for n, score in ipairs(remove(back)) do
      given[n] = (not score or before[back[n]]) and 0 or tonumber(score) > line.now and 1 or 2
      before[back[n]] = true
    end
  end
  if ARGV[5] == '2' then
    for _, taken in ipairs(ids) do
      remove(taken) -- also if the record is lost
    end
  end
  remove(expired)
  if #expired == 500 then
    more, line.soon = 1, line.now
  end

  if not done and ARGV[3] == 'total' then
    local before = line.free
    add(line, ARGV[4] - line.free - held)
    line.creates = not line.exists
    done = (line.free ~= before or line.creates) and 1 or 0
  elseif not done then
    done = change(line, ARGV[3], tonumber(ARGV[4]))
  end

  if ARGV[5] ~= '2' then
    line.wants = wants
  end
  line.total = line.free + held
  serve(line)

  local left = -1
  if #wants > 0 and ARGV[5] ~= '2' then
    left = redis.call('pttl', line.counter)
    line.soon = left >= 0 and math.min(line.soon, line.now + left + 1) or line.soon
  end
  slots = {}
  if line.sum > 0 then
    local leases, taken, entries = {}, {}, {}
    for lease in string.gmatch(ARGV[9], '%S+') do
      leases[#leases + 1] = tonumber(lease)
    end
    for _, n in ipairs(line.which) do
      local lease = leases[n] or leases[1]
      local lasts = lease < 0 and 922337203685477 or math.min(line.now + lease + 1, 922337203685477)
      for _, id in ipairs(ids[n]) do
        taken[#taken + 1] = id
        entries[#entries + 1] = lasts
        entries[#entries + 1] = id
      end
    end
    local added = redis.call('zadd', permits, 'nx', unpack(entries))
    new = added == #taken and taken or new
    add(line, -added)
    local low = 0
    for n, id in ipairs(taken) do
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
  if #line.rest > 0 or line.length > 0 then
    local next = redis.call('zrange', permits, '0', '0', 'withscores')[2]
    line.soon = math.min(line.soon, tonumber(next or math.huge))
  end
  again = stand(line)
  return note(line, done, slots, given)
end

local _, failed = pcall(perform)
if failed then
  take_back()
  failed = type(failed) == 'table' and failed or redis.error_reply(tostring(failed)) -- a text before Redis 7
  return failed
end
if line.more and line.free > 0 then
  announce(line.how, line.channel, line.free, line.queue, line.length)
end
free, which = line.free, line.which
return {free, done, again, which, slots, given, more}
