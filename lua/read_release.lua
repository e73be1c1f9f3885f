-- Brings a reader's re-entry count down. At 0 it leaves the lock, which is free if nobody else is in.
--
-- KEYS[1]  the lock: a hash (see read_acquire.lua)
-- KEYS[2]  optional: the marks of the writers that wait, a sorted set (see write_acquire.lua)
-- ARGV[1]  owner field
-- ARGV[2]  the count that the owner has once this call succeeded; 0 ends the hold
-- ARGV[3]  lease in ms of what is still held
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
--
-- Reply 1       released, and if somebody can have the lock now, whoever waits is told
-- Reply 0       not held by the owner, and it has no hold key any more
-- Error UNTOLD  released, but whoever waits could not be told
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and a
-- hold that has ended answers 0. A partial release never shortens an expiry.
--
-- The lock is free if no reader with a live hold key is left, whatever fields there are. Of many fields one usually tells that a
-- reader lives, or a few do. If all were looked at, the hash expires with the last of these readers; if one is left that waits to
-- become the writer, it is told.
--
-- Whoever waits is told by '1' on the unlock channel, and then by '00', which is '0' for Redisson: it forgets a '1' that comes
-- while it is about to wait, and remembers a '0'.
--
-- A server without memory refuses hincrby and set, because they might need some, unless the script has
-- written before. So a field that is not there is deleted first. No field is written after the expiry: see release.lua.

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

for level = 1, above do
  redis.call('del', hold_key(lock, owner, level))
end
redis.call('hdel', lock, owner)
if redis.call('hget', lock, 'mode') == 'write' then
  return 1
end

-- one_of reports whether one of some fields is a live reader's, as far as its first level tells.
local function one_of(fields)
  for _, field in ipairs(fields) do
    if redis.call('pttl', hold_key(lock, field, 1)) > 0 then
      return true
    end
  end
end

if redis.call('hlen', lock) > 9 and (one_of({redis.call('hrandfield', lock)}) or one_of(redis.call('hrandfield', lock, '9'))) then
  return 1
end
local longest, readers, reader = 0, 0, ''
local all = redis.call('hgetall', lock)
for i = 1, #all, 2 do
  local field = all[i]
  local left = lives(lock, field, all[i + 1])
  if left > 0 then
    longest, readers, reader = math.max(longest, left), readers + 1, field
  end
end
if readers == 0 then
  redis.call('del', lock)
else
  redis.call('pexpire', lock, longest)
  local upgrades = false
  for _, mark in ipairs(marks and readers == 1 and redis.call('zrange', marks, '0', '-1') or {}) do
    upgrades = upgrades or string.find(mark .. ' ', ' ' .. reader .. ' ', 1, true)
  end
  if not upgrades then
    return 1
  end
end
local heard = redis.pcall(ARGV[4], ARGV[5], '1')
redis.pcall(ARGV[4], ARGV[5], '00')
if type(heard) ~= 'number' then
  return redis.error_reply('UNTOLD ' .. heard.err)
end
return 1
