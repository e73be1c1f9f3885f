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
-- ARGV[1]   request: as in semaphore.lua
-- ARGV[2]   the change: as in semaphore.lua, or the word total and the number of all permits; set is total if the counter does not exist. A
--           number alone is the whole request: 1, the permit with the only id is returned; -1, a single waiter wants one with that id
-- ARGV[3]   <how> <mode> <keep> <wants>, as in semaphore.lua. Mode 3 is mode 1 for a single want of one permit, which another process's call
--           may grant: with the first id, for keep ms, and by a message to this process. Its next call finds that, and sets the lease
-- ARGV[4]   the semaphore's channel
-- ARGV[5]   leases of the permits in ms, separated by spaces, one per want or one for all; -1: they do not expire
-- ARGV[6]   optional: the first id. As many ids of new permits are here as are wanted, then those of permits to return
-- ARGV[n]   from 7 on: the other ids
--
-- Reply free      a number alone: ARGV[2] was 1, and the permit was returned before it had expired
-- Reply slot      the same: ARGV[2] was -1, and the new permit has that slot
-- Reply result    <free>|<again>|<more>|<done>|<which>|<slots>|<given>, as in semaphore.lua; more is 1 if more permits have expired, which
--                 the next call returns; the slots of all granted permits in order; for each permit to return: 1 it was returned, 2 the
--                 same, but it had expired, 0 it is unknown or listed twice
-- Error FOREIGN   the key holds another text than a number: nothing was changed
--
-- The script first returns at most 500 expired permits, unless it only returns a live one, and nobody is in line. Redisson does that, too,
-- when it takes permits, but ignores slots. So if a slot is too high for the number of all permits, the script looks for slots whose permits
-- are gone.
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

local length = KEYS[5] and redis.call('zcard', KEYS[5])

-- include clock

-- Usually nobody is in line, no permit has expired, and the call is for one permit. Each call creates the functions behind this anew, which
-- takes longer than all of it. Whatever else may be is left to the rest, as it was.
local sign = string.byte(ARGV[2]) -- 45 is a minus, and letters come behind the digits
if length == 0 and sign < 58 then
  local now, id, ends, slot, score = clock(), ARGV[6], nil, nil, nil
  if sign ~= 45 then
    ends = redis.call('zscore', KEYS[3], id)
    ends = ends and tonumber(ends) > now and ends
  else
    local held, free = redis.call('zcard', KEYS[3]), tonumber(redis.call('get', KEYS[1]) or '') or 0
    slot = free > 0 and (held == 0 or redis.call('zcount', KEYS[3], '-inf', string.format('%d', now)) == 0) -- expired ones are returned first
      and redis.call('zcard', KEYS[4]) -- the lowest free slot, if there are no gaps, and none of permits that are gone
    if slot and slot < free + held and (slot == 0 or redis.call('zcount', KEYS[4], '0', slot - 1) == slot) and redis.call('pttl', KEYS[1]) < 0 then
      local lease = tonumber(ARGV[5])
      score = slot == 0 and '0' or string.format('%d', slot)
      ends = lease < 0 and '922337203685477' or string.format('%d', math.min(now + lease + 1, 922337203685477))
    end
  end
  -- include first
  local isFirst, before = false, nil
  if ends then
    isFirst, before = first(KEYS[2], ARGV[1])
  end
  if isFirst then
    local free, done = redis.pcall('incrby', KEYS[1], ARGV[2]), false
    if type(free) == 'number' then
      if score then
        done = redis.pcall('zadd', KEYS[3], 'nx', ends, id) == 1
        if done and redis.pcall('zadd', KEYS[4], 'nx', score, id) ~= 1 then
          done = redis.call('zrem', KEYS[3], id) == 0
        end
      else
        done = redis.pcall('zrem', KEYS[3], id) == 1
        if done and type(redis.pcall('zrem', KEYS[4], id)) ~= 'number' then
          done = redis.call('zadd', KEYS[3], ends, id) == 0
        end
      end
      if done and score then
        return slot
      elseif done then
        if free > 0 then
          redis.pcall(string.byte(ARGV[3]) == 115 and 'spublish' or 'publish', ARGV[4], string.format('%d', free)) -- as announce
        end
        return free
      end
      redis.call('incrby', KEYS[1], score and '1' or '-1')
    end
    undo(KEYS[2], before)
  end
end

local texts = redis.call('mget', KEYS[1], KEYS[2])
-- include announce counter message record line serve grant
local free, exists, foreign = free_of(KEYS[1], texts[1])
if foreign then
  return foreign
end
local permits, numbers = KEYS[3], KEYS[4]
local numbered = redis.call('zcard', numbers)
local line = open({
  counter = KEYS[1], recorded = KEYS[2], queue = KEYS[5], requests = KEYS[6], ends = KEYS[7], channel = ARGV[4], free = free,
  exists = exists, record = texts[2], request = ARGV[1], now = clock(), length = length or 0, total = math.huge, soon = math.huge, change = 0, sum = 0,
  wants = {}, which = {}, rest = {}, held = redis.call('zcard', permits), grant = grant, grants = {},
}, ARGV[3])

-- remove returns permits, and when each of them was to expire. Nobody grants one any more.
local removed, new, taken_slots = {}, {}, {} -- the first two for take_back
local function remove(ids)
  if #ids == 0 then
    return ids
  end
  local text = line.length > 0 and redis.call('hmget', line.requests, line.client)[1]
  local offered = text and string.match(text, '^want 1 (.+)$')
  for _, id in ipairs(offered and ids or {}) do
    if id == offered then
      redis.call('hdel', line.requests, line.client)
    end
  end
  local ends, slots = redis.call('zmscore', permits, unpack(ids)), redis.call('zmscore', numbers, unpack(ids))
  numbered = numbered - redis.call('zrem', numbers, unpack(ids))
  removed[#removed + 1] = {key = numbers, ids = ids, scores = slots}
  local n = redis.call('zrem', permits, unpack(ids))
  removed[#removed + 1] = {key = permits, ids = ids, scores = ends}
  line.held = line.held - n
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

local wants, ids, back = numbers_of(line.asked), {}, {}
local i = 6
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
if sum and not slots then
  slots, given = #wants > 0 and (redis.call('zscore', numbers, ids[1][1]) or '0') or '', #wants > 0 and '' or '1'
end
if done and not (sum and line.cancelled) then
  return answer(line, 0, 0, done, which, slots, given or string.sub(string.rep('0,', #back), 1, -2))
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
    local before, each = {}, {}
    for n, score in ipairs(remove(back)) do
      each[n] = (not score or before[back[n]]) and 0 or tonumber(score) > line.now and 1 or 2
      before[back[n]] = true
    end
    given = table.concat(each, ',')
  end
  if line.cancelled then
    for _, taken in ipairs(ids) do
      remove(taken) -- also if the record is lost
    end
  end
  remove(expired)
  if #expired == 500 then
    more, line.soon = 1, line.now
  end

  if not done then
    done = sign < 58 and 1 or change(line, ARGV[2])
  end
  local known = not line.cancelled and wants[1] == 1 and redis.call('zscore', permits, ids[1][1]) -- granted by a message
  if not line.cancelled then
    line.wants = known and {unpack(wants, 2)} or wants
  end
  line.total = line.free + line.held
  line.id = ids[1] and ids[1][1]
  serve(line)
  if known then
    for n, which in ipairs(line.which) do
      line.which[n] = which + 1
    end
    table.insert(line.which, 1, 1)
    line.sum = line.sum + 1
  end

  local left = -1
  if #wants + #line.grants > 0 then
    left = redis.call('pttl', line.counter)
    line.soon = left >= 0 and math.min(line.soon, line.now + left + 1) or line.soon
  end
  if line.sum + #line.grants > 0 then
    local leases, taken, fresh, entries = {}, {}, {}, {}
    for lease in string.gmatch(ARGV[5], '%S+') do
      leases[#leases + 1] = tonumber(lease)
    end
    local function take(id, lease)
      local lasts = lease < 0 and 922337203685477 or math.min(line.now + lease + 1, 922337203685477)
      taken[#taken + 1] = id
      if known and #taken == 1 then
        redis.call('zadd', permits, 'xx', 'gt', lasts, id)
        return
      end
      fresh[#fresh + 1] = id
      entries[#entries + 1] = lasts
      entries[#entries + 1] = id
    end
    for _, n in ipairs(line.which) do
      for _, id in ipairs(ids[n]) do
        take(id, leases[n] or leases[1])
      end
    end
    for _, grant in ipairs(line.grants) do
      take(grant.id, line.keep)
    end
    local added = #fresh > 0 and redis.call('zadd', permits, 'nx', unpack(entries)) or 0
    new = added == #fresh and fresh or new
    add(line, -added)
    local low = 0
    for n, id in ipairs(taken) do
      local slot = slot_from(low)
      if slot >= line.total then
        numbered = redis.call('zinterstore', numbers, '2', numbers, permits, 'weights', '1', '0')
        slot = slot_from(0)
      end
      if redis.call('zadd', numbers, 'nx', slot, id) == 1 then
        taken_slots[n], low, numbered = slot, slot + 1, numbered + 1
      else
        taken_slots[n] = tonumber(redis.call('zscore', numbers, id))
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
  again, which, slots = stand(line), table.concat(line.which, ','), table.concat(taken_slots, ',', 1, line.sum)
  return note(line, done, which, slots, given)
end

local _, failed = pcall(perform)
if failed then
  take_back()
  for _, grant in ipairs(line.grants) do
    restore(line, grant)
  end
  failed = type(failed) == 'table' and failed or redis.error_reply(tostring(failed)) -- a text before Redis 7
  return failed
end
for n, grant in ipairs(line.grants) do
  local id = string.format(string.rep('%02x', #grant.id), string.byte(grant.id, 1, -1))
  local message = grant_message(id, string.format('%d', line.keep), taken_slots[line.sum + n])
  if type(redis.pcall(line.how, ear_of(line, grant.client), message)) ~= 'number' then -- this user may not send it: nobody has the permit
    redis.call('zrem', numbers, grant.id)
    redis.call('zrem', permits, grant.id)
    line.free = redis.call('incrby', line.counter, '1')
    restore(line, grant)
  end
end
if line.more and line.free > 0 then
  announce(line.how, line.channel, line.free, line.queue, line.length)
end
return answer(line, again, more, done, which, slots, given)
