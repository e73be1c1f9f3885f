-- Refreshes the places of many waiters in the queues of fair locks. It also wakes the head of a queue whose lock is free.
--
-- KEYS[3n-2]  the locks, all of one cluster slot
-- KEYS[3n-1]  their queues: lists of owners
-- KEYS[3n]    the time at which each gives up: sorted sets of owners
-- ARGV[1]     how many ms a place lasts from now
-- ARGV[2]     how to publish: publish or spublish
-- ARGV[3]     1: the number of receivers tells whether a waiter lives
-- ARGV[2n+2]  owner field that waits for KEYS[3n-2]; or '-' and the owner of a hold that was lost, if any: a look, alone
--             at its lock in the call
-- ARGV[2n+3]  unlock channel of KEYS[3n-2]
--
-- Reply {verdict, ...}  one per waiter: 1 it has its place, 0 it has none, -1 refused for now. For a look: in how many ms the lost hold ends,
--                       or the first waiter has had its time, if a waiter of Redisson's is behind it; otherwise 0, or -1
--
-- A bad key must not affect the other locks: a key that cannot be read gives -1, a key of another type 0. If a lock is free, the head
-- of its queue is notified: a holder or a head may have died, or the key was deleted.

--
-- The cost grows with the waiters in the call, not with the queue: the times show who is in it. Only if Redisson has waiters there is
-- the list read, and only its beginning. Entries further back keep any time they have beyond their place.

local verdicts, queues, found = {}, {}, {}

-- read records, for each entry up to last, the number of Redisson's entries before it.
local function read(q, last)
  local before = 0
  q.before = {}
  for _, entry in ipairs(redis.call('lrange', q.list, '0', last)) do
    q.before[entry] = before
    before = before + (is_ours(entry) and 0 or 1)
  end
end

-- look checks whether there is a queue, and otherwise returns the verdict for all its waiters.
local function look(q)
  local sizes = {}
  for i, key in ipairs({{'pttl', q.lock}, {'llen', q.list}, {'zcard', q.times}}) do
    local answer = redis.pcall(key[1], key[2])
    if type(answer) ~= 'number' then
      q.verdict = string.find(answer.err, 'WRONGTYPE', 1, true) and 0 or -1
      return
    end
    sizes[i] = answer
  end
  queues[#queues + 1] = q
  q.torn = sizes[2] ~= sizes[3] -- somebody has deleted one of the two, or a part of it: the list counts
  if q.torn then
    read(q, '-1')
  end
end

-- behind returns the number of Redisson's entries before an entry of this library; nil if the entry is gone.
local function behind(q, entry)
  if q.torn then
    return q.before[entry]
  end
  local time = redis.call('zscore', q.times, entry)
  if not time then
    return nil
  end
  local beyond = math.floor(time) - fresh(q, 0)
  if beyond <= 0 then
    return 0
  end
  if not q.before then
    read(q, '999')
  end
  return q.before[entry] or math.ceil(beyond / redisson_wait)
end

for i = 1, #KEYS / 3 do
  local lock, owner = KEYS[3 * i - 2], ARGV[2 * i + 2]
  local q = found[lock]
  if not q then
    q = {
      lock = lock, list = KEYS[3 * i - 1], times = KEYS[3 * i],
      place = tonumber(ARGV[1]), command = ARGV[2], channel = ARGV[2 * i + 3], counts = ARGV[3],
    }
    found[lock] = q
    look(q)
  end
  q.looks, q.at = string.match(owner, '^%-(.*)$'), i
  local before = not q.verdict and behind(q, owner)
  if before then
    redis.call('zadd', q.times, stamp(q, fresh(q, before), owner), owner)
  end
  verdicts[i] = q.verdict or before and 1 or 0
end

for _, q in ipairs(queues) do -- with their places refreshed
  local free, first, time = redis.call('exists', q.lock) == 0, nil, nil
  if free then
    first, time = wake(q)
  else
    head(q)
  end
  if q.looks and free then
    verdicts[q.at] = first and has_redisson(q, true) and math.ceil(time) - now or 0
  elseif q.looks then
    verdicts[q.at] = redis.call('hexists', q.lock, q.looks) == 1 and redis.call('pttl', q.lock) or 0
  end
end
return verdicts
