-- Lowers an owner's re-entry count. At 0 the lock passes to the next owner, becomes free, or stays taken for a while.
--
-- KEYS[1]      the lock: a hash, field = owner, value = count
-- KEYS[2]      optional: the fencing counter, raised for a next owner
-- KEYS[#KEYS]  with ARGV[3]: the queue of waiting processes, a sorted set (see acquire.lua)
-- ARGV[1]      owner field
-- ARGV[2]      unlock channel
-- ARGV[3]      optional: lease in ms of a grant to another process; '' without a queue
-- ARGV[4]      optional: how to publish, publish or spublish; the former if missing
-- ARGV[5]      optional: the owner's count after this call; 0 or missing ends the hold; -1 the same of an owner that has waited: if it was
--              told that the lock is free, and has lost its place by that, nobody else may know
-- ARGV[6]      optional: lease in ms: of the remaining levels, or of ARGV[7]
-- ARGV[7]      optional: the next owner in this process
-- ARGV[8]      with ARGV[7]: 1: it gets the lock; 0: the head of the queue gets it, and ARGV[7] joins at the end; 2: the placeholder
--              ARGV[7] has the lock until its lease ends, and all waiters must ask how long that is
-- ARGV[9]      optional: 1 if the next owner's lease is shorter than that of a grant
-- ARGV[10]     optional, with a queue and the counter: the number of spare tokens for the next owner in this process
--
-- Reply 1        released, and waiters were notified
-- Reply 3        released for all, and several listen
-- Reply 4        released for all, and some who listen, or may, are outsiders, or in line but not counted, see below
-- Reply 2        released, and another process of the queue has the lock
-- Reply {token, spare}  released, and the next owner in this process has the lock; token is 0 without KEYS[2]. That owner also gets the
--                       next spare numbers; spare is missing if there are none
-- Reply 0        not held by the owner, and no longer in the queue
-- Error UNTOLD   released, but waiters could not be notified
--
-- A repeat of a call whose reply was lost changes nothing: the count never rises here, and if the hold has ended, the reply is 0. A
-- partial release never shortens the expiry.
--
-- Grants, and the time to look at the lock, are sent to their process alone, on the channel <unlock channel>:<client>: see
-- message.lua. '00' on the unlock channel is '0' for Redisson, which is not in the queue, and is ignored by processes in the queue. '01'
-- is '1' for Redisson, where each thread has to ask to learn a shorter time, and '0' for this library, where the first waiter asks for
-- all.
--
-- A process is counted before it gets the lock, and a published grant is never taken back: others than the counted may receive it. One
-- that is not counted loses its place, and is notified in case it lives. If it was not counted when it joined, either (seen.lua), this
-- server cannot see who waits, and the release works as beside outsiders: see below.
--
-- Processes that may be in the queue also listen to <unlock channel>:rlock_queue, which never has messages. So a listener on the unlock
-- channel alone is an outsider. While there are outsiders, a release grants the lock to nobody: it becomes free, and the outsiders are
-- notified, and so is the head of the queue, in case no outsider wants the lock.
--
-- The process that was granted the lock, or notified that it is free, may be stopped or dead. So each call makes sure that the
-- processes behind it look when the lease of a grant ends.
--
-- A server without memory refuses hincrby, because it might need some, unless the script has written before. So a missing field is
-- deleted first.
--
-- pexpire deletes the lock if the time is already over; up to Redis 7.0, a stalled server may consider any time over. So no field is
-- written after it: the lock would have no expiry.
--
-- Redis does not roll back a failed script. So the first access to the lock and to the queue comes before anything is written, and the
-- owner's field is deleted last: after an error the owner still holds the lock, unless only its message failed. If another process
-- cannot be given the lock, it is skipped; if none can, all waiters are notified.

local lock, owner, channel, next = KEYS[1], ARGV[1], ARGV[2], ARGV[7]
local lease, publish = ARGV[3], ARGV[4] or 'publish'
local want = ARGV[5] and tonumber(ARGV[5]) or 0
local queue = (lease or '') ~= '' and KEYS[#KEYS]
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
  if redis.call('pttl', lock) < tonumber(ARGV[6]) then
    redis.call('pexpire', lock, ARGV[6])
  end
  return 1
end

local front, score -- the first of the queue
local stay = next and ARGV[8] == '1'
local told = ARGV.told -- how many have been told that it is free; release_each.lua may have done that
local asleep -- see watch

-- Most often nobody waits, or the first of the queue gets the lock; then this is all. Whatever else there is to do is below.
if not told and ARGV[8] ~= '2' then
  if queue and not next then
    front = redis.call('zrange', queue, '0', '0')[1]
  elseif queue then
    front, score = unpack(redis.call('zrange', queue, '0', '0', 'withscores'))
  end
  if not stay and not front and (not queue or not next) then
    if redis.call('hdel', lock, owner) == 0 then -- the key goes with its last field
      return 0
    end
    told = redis.pcall(publish, channel, '0')
    if told == 0 then
      return 1
    end
  elseif front and not next and front ~= owner and not string.find(front, ' ', 1, true) then
    local ear = channel .. ':' .. string.sub(front, 1, 36)
    local listen = redis.pcall('pubsub', publish == 'publish' and 'numsub' or 'shardnumsub', ear, channel, channel .. ':rlock_queue')
    local one = not listen.err and listen[2] > 0 and listen[4] <= listen[6]
    if one then
      redis.call('hdel', lock, '') -- as below: tests the right to delete
    end
    -- The next field is written before this one goes: a slot that is moving to another node has no place for a key that was gone.
    if one and redis.pcall('hset', lock, front, '1') == 1 then
      local ended = redis.call('hdel', lock, owner) == 1
      if
        ended
        and redis.pcall('pexpire', lock, lease) == 1
        and type(redis.pcall(publish, ear, front .. ' ' .. lease .. ' 0 -')) == 'number'
      then
        redis.pcall('zrem', queue, front) -- a user without this right finds that out with a place of its own
        asleep = redis.pcall('pttl', queue)
        if type(asleep) == 'number' and asleep <= lease + 1000 then
          return 2
        end
      else
        redis.pcall('hdel', lock, front)
        if ended then -- so it would be with every place: this user may not set the expiry, or not publish there
          front, told = nil, redis.pcall(publish, channel, '0')
        end
      end
    end
  end
end

-- include raise queue_entry message seen

local line = channel .. ':rlock_queue'

local function has_outsiders(listen)
  return not listen.err and listen[2] > listen[4]
end

-- announced returns the reply for a message that so many have heard.
local function announced(heard, outsiders)
  if type(heard) ~= 'number' then
    return redis.error_reply('UNTOLD ' .. heard.err)
  end
  if outsiders or front and is_unseen(score) or queue and not front and heard > 0 and has_outsiders(listening(publish, channel, line)) then
    return 4
  end
  if heard > 1 then
    return 3
  end
  return 1
end

if told then
  return announced(told)
end

local function free(message, outsiders)
  if redis.call('hdel', lock, owner) == 0 then
    return 0
  end
  return announced(redis.pcall(publish, channel, message), outsiders)
end

-- A different owner keeps the lock taken, so that a late renewal or re-entry of this owner finds nothing.
if ARGV[8] == '2' then
  if redis.call('hexists', lock, owner) == 1 then
    redis.call('hdel', lock, '')
    redis.call('hset', lock, next, '1')
    redis.call('pexpire', lock, ARGV[6])
    redis.call('hdel', lock, owner)
    return announced(redis.pcall(publish, channel, '01'))
  end
  if queue then
    front, score = unpack(redis.call('zrange', queue, '0', '0', 'withscores'))
  end
end

-- tell sends a message to the process of an entry. It returns how many listeners were counted; nil if the message was refused.
local function tell(entry, message)
  local heard = redis.pcall(publish, channel_of(channel, entry), message)
  return type(heard) == 'number' and heard or nil
end

-- look_up finds the first of the queue. An empty queue's key is gone, and on a cluster the slot may be moving to another node: a refusal
-- is no error.
local function look_up()
  front, score = unpack(redis.pcall('zrange', queue, '0', '0', 'withscores'))
end

-- watch sends entries from that index on the time at which the grant ends, to look at the lock. It leaves out entries so far back that
-- they wake up before all entries ahead of them, if dead, could each have used up a grant. The queue's expiry shows how long entries
-- may sleep. Entries with an odd score look in time anyway. The looks are 20 ms apart, so that the first one gets a free lock, even on
-- a busy machine. If all the checked entries already look in time, it sends the time to the rest, too. Then no entry sleeps longer, and
-- later calls need not check.
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
      if math.floor(behind[n + 1]) % 2 == 0 then
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

if asleep then -- it was granted above
  watch(0)
  return 2
end
if front and not score then
  look_up()
end

-- invite tells the head of the queue that the lock is free, and reports whether there is one.
local function invite()
  while front do
    local heard = tell(front, look_message(0))
    if heard and heard > 0 then
      watch(1)
      return true
    end
    redis.call('zrem', queue, front)
    if heard and is_unseen(score) then -- it asks, or has died
      watch(0)
      return true
    end
    look_up()
  end
  return false
end

if redis.call('hexists', lock, owner) == 0 then
  local left = front and redis.call('zrem', queue, queue_entry(owner), queue_entry(owner, false, true), queue_entry(owner, true))
  if front and (left > 0 or want < 0) and redis.call('exists', lock) == 0 then
    look_up()
    invite() -- it may have been the owner's turn to look
  end
  return 0
end

-- give adds another owner's hold while the ending one exists. After an error, which it returns, nothing was written.
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

local entry_of_next = next and queue_entry(next, ARGV[9] == '1', fence)

local function hand_off()
  local token, spare = 0, nil
  if fence then
    token, spare = raise(fence, tonumber(ARGV[10]))
  end
  local failed = type(token) == 'table' and token or give(next, '1', ARGV[6])
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

local listen = listening(publish, channel, line, channel_of(channel, front or next), channel_of(channel, next or front))
local outsiders, heard = listen.err or has_outsiders(listen), listen[6]

if entry_of_next then
  local last = not front and 0 or redis.call('zrange', queue, '-1', '-1', 'withscores')[2]
  local place = math.floor(last / 2) * 2 + 3 + (listen[8] == 0 and 0.5 or 0)
  asleep = redis.call('pttl', queue)
  redis.call('zadd', queue, 'nx', place, entry_of_next)
  local failed = asleep < lease + 1000 and redis.pcall('pexpire', queue, lease + 1000)
  if type(failed) == 'table' then -- the queue may have no expiry yet
    redis.call('zrem', queue, entry_of_next)
    return failed
  end
  if not front then
    front, score = entry_of_next, place
  end
end

if outsiders then
  return free(invite() and '00' or '0', not listen.err)
end

-- The grants below are announced before the owner's field is deleted, which must not fail then. So the right to delete is tested here.
redis.call('hdel', lock, '')

while front do
  if heard == 0 and is_unseen(score) then
    break
  end
  local entry = front
  if entry == entry_of_next then
    return hand_off()
  end
  redis.call('zrem', queue, entry)
  local field, mark = entry, ''
  if string.find(entry, ' ', 1, true) then
    field, mark = string.match(entry, '^(%S+)( ?%l?)$')
  end
  if heard == 0 then
    tell(entry, look_message(0)) -- if it lives it asks, and joins again
  elseif field and field ~= owner then
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
      redis.call('hdel', lock, field) -- the message was refused: nobody has it
    end
  end
  look_up()
  heard = front and listening(publish, channel_of(channel, front))[2]
end
return free(invite() and '00' or '0')
