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
-- ARGV[9]      optional, with ARGV[8]: 1 if the next owner's lease is shorter than that of a grant
-- ARGV[10]     optional, with ARGV[8] and the counter: how many more tokens the next owner in this process is to have
--
-- Reply 1        released, and whoever waits is told
-- Reply 3        released for everybody, several of whom listen
-- Reply 2        released, and another process of the queue has the lock
-- Reply {token, spare}  released, and the next owner in this process has the lock; 0 without KEYS[2]. As many tokens above that one are its
--                       own, too; spare is missing if there are none
-- Reply 0        not held by the owner, and not in the queue any more
-- Error UNTOLD   released, but whoever waits could not be told
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and a
-- hold that has ended answers 0. A partial release never shortens the expiry.
--
-- A grant is told to its process alone, on the channel <unlock channel>:<client>, and so is when to look at the lock: see
-- message.lua. A process that nobody listens for has died, and is passed over. '00' on the unlock channel is '0' for Redisson, which is
-- not in the queue, and nothing for those who are. '01' is '1' for Redisson, where each thread has to ask to learn a shorter time, and
-- '0' for us, where the first asks for all.
--
-- A process that may be in the queue listens to <unlock channel>:rlock_queue as well, where nothing is ever said. So whoever listens
-- to the unlock channel alone is an outsider. While there is one, the lock is given to nobody: it is free, and the outsiders are told, and
-- so is the first of the queue, in case that they do not want it.
--
-- Whoever has been given the lock, or told that it is free, may be stopped or dead. So each call makes sure that those behind look
-- when the lease of a grant is over.
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
local front = queue and redis.call('zrange', queue, '0', '0')[1]
if not stay and not front and (not queue or next == '') then
  return free('0')
end

-- tell sends a message to the process of an entry, and reports whether it listens.
local function tell(entry, message)
  local heard = redis.pcall(ARGV[4], ARGV[5] .. ':' .. string.sub(entry, 1, 36), message)
  return type(heard) == 'number' and heard > 0
end

-- first returns the first of the queue as it is now; nil if there is none. The queue may be gone with its last entry, and its slot be served by
-- another node of a cluster: not to reach it any more is no error.
local function first()
  return redis.pcall('zrange', queue, '0', '0')[1]
end

-- watch has those look when a grant is over that are behind so many others: all who would sleep past the time when those before them,
-- if all of these are dead, could each have had a grant. The queue's expiry tells how long anybody sleeps. An entry
-- with an odd score looks by then anyway. They look 20 ms after each other, so that the first gets a lock that is free, on a busy machine, too.
-- If all of these look by then, so do the rest when they have been told: then nobody sleeps longer, and the calls that follow need not look here.
local lease, asleep = ARGV[8], nil
local function watch(from)
  asleep = asleep or redis.pcall('pttl', queue)
  local many = type(asleep) == 'number' and math.ceil((asleep - 1000) / lease) - 1 or 0
  if many < 1 then
    return
  end
  local to, told = from + many - 1, false
  repeat
    local behind = redis.pcall('zrange', queue, from, to, 'withscores')
    for n = 1, #behind, 2 do
      if behind[n + 1] % 2 == 0 then
        told = true
        tell(behind[n], look_message(lease + math.min(10 * (n - 1), 500)))
        redis.pcall('zadd', queue, behind[n + 1] + 1, behind[n])
      end
    end
    if to == -1 or #behind < 2 * many then -- these were all
      redis.pcall('pexpire', queue, lease + 1000)
      return
    end
    to = -1
  until told
end

-- invite tells the first of the queue that the lock is free, and reports whether there is one.
local function invite()
  local entry = front or first()
  while entry do
    if tell(entry, look_message(0)) then
      watch(1)
      return true
    end
    redis.call('zrem', queue, entry)
    entry = first()
  end
  return false
end

if redis.call('hexists', lock, owner) == 0 then
  if front and redis.call('zrem', queue, queue_entry(owner), queue_entry(owner, false, true), queue_entry(owner, true)) > 0 and redis.call('exists', lock) == 0 then
    front = nil
    invite() -- it may have been the owner's turn to look
  end
  return 0
end

-- give writes the hold of another owner beside the one that ends. If that fails it returns the error, and nothing was written.
local function give(field, count, lasts)
  local failed = redis.pcall('hset', lock, field, count)
  if type(failed) == 'number' then
    failed = redis.pcall('pexpire', lock, lasts)
    if failed == 1 then
      return nil
    end
    redis.call('hdel', lock, field)
  end
  return failed
end

local entry_of_next = next ~= '' and queue_entry(next, ARGV[9] == '1', fence)

local function hand_off()
  local token, spare = 0, nil
  if fence then
    token, spare = raise(fence, tonumber(ARGV[10]))
  end
  local failed = type(token) == 'table' and token or give(next, '1', ARGV[3])
  if failed then
    return failed
  end
  if front then
    redis.call('zrem', queue, entry_of_next)
  end
  redis.call('hdel', lock, owner)
  return {token, spare}
end

if stay then
  return hand_off()
end

if entry_of_next then
  local last = not front and 0 or redis.call('zrange', queue, '-1', '-1', 'withscores')[2]
  redis.call('zadd', queue, 'nx', math.floor(last / 2) * 2 + 3, entry_of_next)
  asleep = redis.call('pttl', queue)
  if asleep < lease + 1000 then
    redis.call('pexpire', queue, lease + 1000)
  end
  front = front or entry_of_next
end

local listen = redis.pcall('pubsub', ARGV[4] == 'publish' and 'numsub' or 'shardnumsub', ARGV[5], ARGV[5] .. ':rlock_queue')
if listen.err or listen[2] > listen[4] then
  return free(invite() and '00' or '0')
end

-- What is granted below is told before the owner's field goes, which must not fail then: the right to it is tried here.
redis.call('hdel', lock, '')

local entry = front
while entry do
  if entry == entry_of_next then
    return hand_off()
  end
  redis.call('zrem', queue, entry)
  local field, mark = entry, ''
  if string.find(entry, ' ', 1, true) then
    field, mark = string.match(entry, '^(%S+)( ?%l?)$')
  end
  if field and field ~= owner then
    local count, token = '1', '-'
    if mark == ' f' then
      local raised = fence and raise(fence)
      if type(raised) == 'number' then
        token = string.format('%.0f', raised)
      else
        count = '0' -- reserved: it is to ask, and gets a token or an error
      end
    elseif mark ~= '' then
      count = '0' -- reserved: it is to ask, and gets its own lease, or what a mark of a later version stands for
    end
    if not give(field, count, lease) then
      if tell(entry, grant_message(field, lease, token)) then
        redis.call('hdel', lock, owner)
        watch(0)
        return 2
      end
      redis.call('hdel', lock, field)
    end
  end
  entry = first()
end
return free('0')
