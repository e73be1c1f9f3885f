-- Keeps the places of many waiters in the queues of fair locks, and sees to it that nobody sleeps there in front of a free lock.
--
-- KEYS[3n-2]  the locks, all of one cluster slot
-- KEYS[3n-1]  their queues: lists of owners
-- KEYS[3n]    when each gives up: sorted sets of owners
-- ARGV[1]     for how many ms a place lasts, counted from now
-- ARGV[2]     how to publish: publish or spublish
-- ARGV[3]     1: the number of receivers tells whether a waiter lives
-- ARGV[2n+2]  owner field that waits for KEYS[3n-2]
-- ARGV[2n+3]  unlock channel of KEYS[3n-2]
--
-- Reply {verdict, ...}  one per waiter: 1 it has its place, 0 it has none, -1 refused for now
--
-- One bad key must not take the others with it: a lock that cannot be looked at is refused, or its places are gone if the keys
-- hold something else. If a lock is free, the head of its queue is told: a holder or a head may have died, or somebody deleted
-- the key.

local verdicts, queues, found = {}, {}, {}

-- look returns the entries of a queue, and of each how many of Redisson's are before it; or the verdict on all of them.
local function look(q)
  for _, key in ipairs({{'pttl', q.lock}, {'llen', q.list}, {'zcard', q.times}}) do
    local answer = redis.pcall(key[1], key[2])
    if type(answer) ~= 'number' then
      return string.find(answer.err, 'WRONGTYPE', 1, true) and 0 or -1
    end
  end
  queues[#queues + 1] = q
  local behind, entries = 0, {}
  for _, entry in ipairs(redis.call('lrange', q.list, '0', '-1')) do
    entries[entry] = behind
    behind = behind + (is_ours(entry) and 0 or 1)
  end
  return entries
end

for i = 1, #KEYS / 3 do
  local q = {
    lock = KEYS[3 * i - 2], list = KEYS[3 * i - 1], times = KEYS[3 * i],
    place = tonumber(ARGV[1]), command = ARGV[2], channel = ARGV[2 * i + 3], counts = ARGV[3],
  }
  local owner = ARGV[2 * i + 2]
  local entries = found[q.lock] or look(q)
  found[q.lock] = entries
  if type(entries) == 'number' then
    verdicts[i] = entries
  elseif entries[owner] then
    redis.call('zadd', q.times, fresh(q, entries[owner]), owner)
    verdicts[i] = 1
  else
    verdicts[i] = 0
  end
end

for _, q in ipairs(queues) do -- with their places refreshed
  if redis.call('exists', q.lock) == 0 then
    wake(q)
  else
    head(q)
  end
end
return verdicts
