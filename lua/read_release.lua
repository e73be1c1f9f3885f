-- Lowers a reader's re-entry count. At 0 the reader leaves the lock, which is free if it was the last one.
--
-- KEYS[1]  the lock: a hash (see read_acquire.lua)
-- KEYS[2]  optional: the marks of waiting writers, a sorted set (see write_acquire.lua)
-- ARGV[1]  owner field
-- ARGV[2]  the owner's count after this call; 0 ends the hold
-- ARGV[3]  lease in ms of the remaining levels
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply 1       released; if the lock is now available, waiters were notified
-- Reply 0       not held by the owner, which has no hold keys left
-- Error UNTOLD  released, but waiters could not be notified
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and if the hold has ended, the reply is 0. A
-- partial release never shortens an expiry.
--
-- The lock is free if no reader with a live hold key is left, whatever the fields. If there are many fields, a few usually show that
-- two readers live, and that their leases end not much earlier than the hash: renewed ones have two thirds left. If all fields were
-- checked, the hash expires with the last of these readers. If a single reader is left that waits to become the writer, it is notified;
-- without marks, any single reader may be waiting for that. Dead readers found on the way are removed.
--
-- Waiters get '00' on the unlock channel, and then '1'. Redisson reads '00' as '0': it forgets a '1' that arrives just before it starts
-- waiting, but remembers a '0'. This library's waiters ask at the '1', and know by the '00' that it is no other library's.
--
-- Waiters may sleep until the end of this reader's lease, although the other readers' end earlier. Then '<ms>', 2 or more, makes them
-- look at that time, and the '00' before it makes Redisson ask: it ignores numbers other than 0 and 1, and fails on any other text.
-- Marks show how long their writers sleep. Without marks only Redisson may be waiting, and sleeps until the hash expires; one of its
-- threads must ask again if the expiry is now less than half of that away.
--
-- A server without memory refuses hincrby and set, because they might need some, unless the script has written before. So a missing
-- field is deleted first. No field is written after the expiry: see release.lua.

local lock, marks, owner = KEYS[1], KEYS[2], ARGV[1]
local want = tonumber(ARGV[2])

local held = redis.call('hget', lock, owner)
if not held then -- maybe since somebody deleted the hash
  local level = 1
  while redis.call('del', hold_key(lock, owner, level)) == 1 do
    level = level + 1
  end
  return 0
end
local above = tonumber(held) - want

if want > 0 then
  local lease = tonumber(ARGV[3])
  redis.call('hdel', lock, '')
  for level = 1, want do
    local key = hold_key(lock, owner, level)
    if redis.call('pttl', key) < lease then
      redis.call('set', key, '1', 'px', ARGV[3])
    end
  end
  for level = want + 1, want + above do
    redis.call('del', hold_key(lock, owner, level))
  end
  if above > 0 then
    redis.call('hincrby', lock, owner, -above)
  end
  if redis.call('pttl', lock) < lease then
    redis.call('pexpire', lock, ARGV[3])
  end
  return 1
end

local reads = redis.call('hget', lock, 'mode') ~= 'write'
local before = redis.call('pttl', lock)
local longest, readers, reader = 0, 0, ''

-- look counts the other readers in a list of fields, each followed by its count.
local function look(fields)
  longest, readers = 0, 0
  for i = 1, #fields, 2 do
    local field = fields[i]
    if field ~= 'mode' and field ~= owner then
      local left = lives(lock, field, fields[i + 1])
      if left == 0 then
        redis.call('hdel', lock, field)
      else
        longest, readers, reader = math.max(longest, left), readers + 1, field
      end
    end
  end
end

local some = '3'
while reads and redis.call('hlen', lock) > 10 and readers < 2 do
  look(redis.call('hrandfield', lock, some, 'withvalues'))
  some = '9' -- of which seven are readers at least
end
local all = readers < 2 or before - longest > before / 3 + 1000
if reads and all then
  look(redis.call('hgetall', lock))
end

for level = 1, above do
  redis.call('del', hold_key(lock, owner, level))
end
redis.call('hdel', lock, owner)
if not reads then
  return 1
end

local function announce(message)
  redis.pcall(ARGV[4], ARGV[5], '00')
  local heard = redis.pcall(ARGV[4], ARGV[5], message)
  if type(heard) ~= 'number' then
    return redis.error_reply('UNTOLD ' .. heard.err)
  end
  return 1
end

if readers == 0 then
  redis.call('del', lock)
  return announce('1')
end
if all then
  redis.call('pexpire', lock, longest)
end
local late = before - longest > 1000
if readers > 1 and not late then
  return 1
end
local early = string.format('%d', math.max(longest, 2))
local marked = marks and redis.pcall('zrange', marks, '0', '-1', 'withscores') or {err = ''}
local upgrades = marked.err
for i = 1, #marked, 2 do
  upgrades = upgrades or string.find(marked[i] .. ' ', ' ' .. reader .. ' ', 1, true)
end
if readers == 1 and upgrades then
  return announce('1')
end
if #marked == 0 then
  if not late or not all or not marked.err and before < 2 * longest + 1000 then
    return 1
  end
  return announce(early)
end
local clock = redis.call('time')
local ends = clock[1] * 1000 + math.floor(clock[2] / 1000) + longest + 1000 -- of a mark whose writer looks then
late = false
for i = 1, #marked, 2 do
  if tonumber(marked[i + 1]) > ends + 1000 then
    late = true
    redis.pcall('zadd', marks, 'xx', ends, marked[i])
  end
end
if late then
  return announce(early)
end
return 1
