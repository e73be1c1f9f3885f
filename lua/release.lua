-- Brings an owner's re-entry count down. At 0 the lock goes to whoever is next, or is free, or stays taken for a while.
--
-- KEYS[1]      the lock: a hash, field = owner, value = count
-- KEYS[2]      optional: the fencing counter, raised for a next owner
-- KEYS[#KEYS]  with ARGV[8]: the queue of the waiting processes, a sorted set (see acquire.lua)
-- ARGV[1]      owner field
-- ARGV[2]      the count that the owner has once this call succeeded; 0 ends the hold
-- ARGV[3]      lease in ms: of what is still held, or of ARGV[6]
-- ARGV[4]      how to publish: publish or spublish
-- ARGV[5]      unlock channel
-- ARGV[6]      the next owner in this process; '' if there is none
-- ARGV[7]      1: that one gets the lock; 0: the first of the queue does, and that one joins at the end; 2: that one, which
--              nobody is, has the lock until its lease is over, and all are told to ask how long that is
-- ARGV[8]      optional: lease in ms of a grant to another process
-- ARGV[9]      with ARGV[8]: how many grants there are since everybody was last told, with this one
-- ARGV[10]     with ARGV[8]: 1 if this process listens to the unlock channel, though it has no next owner
--
-- Reply 1        released, and whoever waits is told
-- Reply 3        released for everybody, several of whom listen
-- Reply 2        released, and another process of the queue has the lock
-- Reply {token}  released, and the next owner in this process has the lock; 0 without KEYS[2]
-- Reply 0        not held by the owner, and not in the queue any more
-- Error UNTOLD   released, but whoever waits could not be told
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and a
-- hold that has ended answers 0. A partial release never shortens the expiry.
--
-- A grant is told to its process alone, on the channel <unlock channel>:<client>: '<owner> <lease> <grants> <token>', with '-' for
-- no token. '? <ms>' there means: look at the lock in so many ms. A process that nobody listens for has died, and is
-- passed over. '00' on the unlock channel is '0' for Redisson, which is not in the queue, and nothing for those who are. '01' is '1'
-- for Redisson, where each thread has to ask to learn a shorter time, and '0' for us, where the first asks for all.
--
-- A server without memory refuses hincrby, because it might need some, unless the script has
-- written before. So a field that is not there is deleted first.
--
-- If its time is over when Redis gets to it, pexpire deletes the lock; up to Redis 7.0 a server that stalls may find any time over. So
-- no field is written after it: that would be a lock without expiry.
--
-- Redis does not roll back a script that fails. So the first access to the lock and to the queue comes before anything is
-- written, and the owner's field goes last: after an error the owner still holds the lock, unless only its message failed.
-- Whatever keeps another process from getting it only passes that process over; if that happens to all, everybody is told.

local lock, owner, next = KEYS[1], ARGV[1], ARGV[6]
local want = tonumber(ARGV[2])
local queue = ARGV[8] and KEYS[#KEYS]
local fence = #KEYS > (queue and 2 or 1) and KEYS[2]
local mark = fence and ' f' or '' -- of the entries of those that want a token

if want > 0 then
  local held = redis.call('hget', lock, owner)
  if not held then
    return 0
  end
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

local function announce(message)
  local heard = redis.pcall(ARGV[4], ARGV[5], message)
  if type(heard) ~= 'number' then
    return redis.error_reply('UNTOLD ' .. heard.err)
  end
  if heard > 1 then
    return 3
  end
  return 1
end

local function free(message)
  if redis.call('hdel', lock, owner) == 0 then -- the key goes with its last field
    return 0
  end
  return announce(message)
end

-- The lock stays taken by another owner, so that a renewal or re-entry of this one that comes late finds nothing.
if ARGV[7] == '2' and redis.call('hexists', lock, owner) == 1 then
  redis.call('hdel', lock, '')
  redis.call('hset', lock, next, '1')
  redis.call('pexpire', lock, ARGV[3])
  redis.call('hdel', lock, owner)
  return announce('01')
end

local stay = next ~= '' and ARGV[7] == '1'
local front = queue and redis.call('zrange', queue, '0', '3', 'withscores') or {} -- entry, score, entry, ...
if not stay and (not queue or next == '' and #front == 0) then
  return free('0')
end

-- tell sends a message to the process of an entry, and reports whether it listens.
local function tell(entry, message)
  local heard = redis.pcall(ARGV[4], ARGV[5] .. ':' .. string.sub(entry, 1, 36), message)
  return type(heard) == 'number' and heard > 0
end

if redis.call('hexists', lock, owner) == 0 then
  if #front > 0 and redis.call('zrem', queue, owner .. mark) == 1 and redis.call('exists', lock) == 0 then
    local first = redis.pcall('zrange', queue, '0', '0')[1] -- it may have been the owner's turn to look
    if first then
      tell(first, '? 0')
    end
  end
  return 0
end

-- give writes the hold of another owner beside the one that ends. If that fails it returns the error, and nothing was written.
local function give(field, count, lease)
  local failed = redis.pcall('hset', lock, field, count)
  if type(failed) == 'number' then
    failed = redis.pcall('pexpire', lock, lease)
    if failed == 1 then
      return nil
    end
    redis.call('hdel', lock, field)
  end
  return failed
end

local entry_of_next = next ~= '' and next .. mark

local function hand_off()
  local token = fence and redis.call('incr', fence) or 0
  local failed = give(next, '1', ARGV[3])
  if failed then
    return failed
  end
  if #front > 0 then
    redis.call('zrem', queue, entry_of_next)
  end
  redis.call('hdel', lock, owner)
  return {token}
end

if stay then
  return hand_off()
end

local lease = ARGV[8]
if entry_of_next then
  local last = #front == 0 and 0 or redis.call('zrange', queue, '-1', '-1', 'withscores')[2]
  local score = math.floor(last / 2) * 2 + 3
  if redis.call('zadd', queue, 'nx', score, entry_of_next) == 1 and #front < 8 then
    front[#front + 1], front[#front + 2] = entry_of_next, score
  end
  if redis.call('pttl', queue) < lease + 1000 then
    redis.call('pexpire', queue, lease + 1000)
  end
end

-- From here on the queue may be gone with its last entry, and its slot be served by another node of a cluster: not to reach it
-- any more is no error.

-- first returns the next one of the queue, as long as those before it are taken out; nil at its end.
local at = 0
local function first()
  at = at + 1
  if 2 * at > #front then
    front, at = redis.pcall('zrange', queue, '0', '3', 'withscores'), 1
  end
  return front[2 * at - 1]
end

-- watch has those behind the first look in case that the ones before them are dead, if they sleep for longer. Each is told
-- once in its sleep.
local function watch(from)
  for i = at + 1, #front / 2 do
    if front[2 * i] % 2 == 0 then
      local behind = redis.pcall('zrange', queue, from, '31', 'withscores')
      for n = 1, #behind, 2 do
        if behind[n + 1] % 2 == 0 then
          tell(behind[n], '? ' .. lease * (n + 1) / 2)
          redis.pcall('zadd', queue, behind[n + 1] + 1, behind[n])
        end
      end
      return
    end
  end
end

local grants = ARGV[9]
if grants * 2 >= #front then
  -- Everybody here had a turn, or some of many. If others listen, who are not in the queue, it is theirs now.
  local known = redis.call('zcard', queue) + (entry_of_next and 0 or tonumber(ARGV[10]))
  local listen = redis.pcall('pubsub', ARGV[4] == 'publish' and 'numsub' or 'shardnumsub', ARGV[5])
  if listen.err or listen[2] > known then
    for entry in first do
      if tell(entry, '? 0') then
        watch(1)
        return free('00')
      end
      redis.call('zrem', queue, entry)
    end
    return free('0')
  end
  grants = '0'
end

-- What is granted below is told before the owner's field goes, which must not fail then: the right to it is tried here.
redis.call('hdel', lock, '')

for entry in first do
  if entry == entry_of_next then
    return hand_off()
  end
  redis.call('zrem', queue, entry)
  local field, fenced = string.match(entry, '^(%S+)( ?f?)$')
  if field and field ~= owner then
    local count, token = '1', '-'
    if fenced == ' f' then
      local raised = fence and redis.pcall('incr', fence)
      if type(raised) == 'number' then
        token = string.format('%.0f', raised)
      else
        count = '0' -- reserved: it is to ask, and gets a token or an error
      end
    end
    if not give(field, count, lease) then
      if tell(entry, field .. ' ' .. lease .. ' ' .. grants .. ' ' .. token) then
        redis.call('hdel', lock, owner)
        watch(0)
        return 2
      end
      redis.call('hdel', lock, field)
    end
  end
end
return free('0')
