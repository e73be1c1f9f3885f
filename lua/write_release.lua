-- Lowers a writer's re-entry count. At 0 the lock is free, or a read lock if there are readers in the writer's section.
--
-- KEYS[1]  the lock: a hash (see read_acquire.lua)
-- KEYS[2]  optional: the marks of waiting writers, a sorted set (see write_acquire.lua)
-- ARGV[1]  owner field, which ends with ':write'
-- ARGV[2]  the owner's count after this call; 0 ends the hold
-- ARGV[3]  lease in ms of the remaining levels
-- ARGV[4]  how to publish: publish or spublish
-- ARGV[5]  unlock channel
-- ARGV[6]  optional: 1 if this process listens there
--
-- Reply 1       released; if the hold has ended, waiters were notified
-- Reply 4       the same, and they are not only this process's
-- Reply 0       not held by the owner, which has no mark left
-- Error UNTOLD  released, but waiters could not be notified
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and if the hold has ended, the reply is 0. A
-- partial release never shortens the expiry.
--
-- The end of a hold also deletes other writers' marks, so the first to ask is next: waiting readers get their turn, too. Writers that
-- are refused then leave new marks.
--
-- Waiters get '00' on the unlock channel, and then '1'. Redisson reads '00' as '0': it forgets a '1' that arrives just before it starts
-- waiting, but remembers a '0'. This library's waiters ask at the '1', and know by the '00' that it is no other library's.
--
-- A server without memory refuses hincrby and hset, because they might need some, unless the script has written before. So a missing
-- field is deleted first, and the owner's field is deleted before the mode changes. No field is written after the expiry: see
-- release.lua.

local lock, marks, owner = KEYS[1], KEYS[2], ARGV[1]
local want = tonumber(ARGV[2])

local mode = redis.call('hget', lock, 'mode')
local held = mode == 'write' and redis.call('hget', lock, owner)
if not held then
  for _, mark in ipairs(marks and redis.call('zrange', marks, '0', '-1') or {}) do
    if string.sub(mark .. ' ', 1, #owner + 1) == owner .. ' ' then
      redis.call('zrem', marks, mark)
      if mode ~= 'write' and redis.call('exists', marks) == 0 then
        redis.pcall(ARGV[4], ARGV[5], '01') -- it kept readers out
      end
    end
  end
  return 0
end

if want > 0 then
  local above = tonumber(held) - want -- fails here, before anything is written, if held is no number
  redis.call('hdel', lock, '')
  if above > 0 then
    redis.call('hincrby', lock, owner, -above)
  end
  if redis.call('pttl', lock) < tonumber(ARGV[3]) then
    redis.call('pexpire', lock, ARGV[3])
  end
  return 1
end

local left = readers(lock, owner)
if marks then
  redis.pcall('del', marks)
end
if left == 0 then
  redis.call('del', lock)
else
  redis.call('hdel', lock, owner)
  redis.call('hset', lock, 'mode', 'read')
  redis.call('pexpire', lock, left)
end
redis.pcall(ARGV[4], ARGV[5], '00')
local heard = redis.pcall(ARGV[4], ARGV[5], '1')
if type(heard) ~= 'number' then
  return redis.error_reply('UNTOLD ' .. heard.err)
end
local own = tonumber(ARGV[6]) or 0
if heard > own then
  local counted = listening(ARGV[4], ARGV[5]) -- without those that listen to a pattern: they wait for no lock
  if counted.err or counted[2] > own then
    return 4
  end
end
return 1
