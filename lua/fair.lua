-- The queue of a fair lock, in Redisson's format. A prelude for every script that uses it (see script.go).
--
-- A queue q has these fields:
--
-- lock, list, times  keys: the lock; the entries in order, each the owner field of one waiter; the time at which each gives up,
--                    in ms on the server's clock: Redisson drops the first entry when its time is over
-- place              how many ms an entry of this library lasts; its waiter refreshes it
-- command, channel   publish or spublish, and the unlock channel, the prefix of the waiters' channels
-- counts             '1': a waiter that is not counted among the listeners has gone, unless it never was
--
-- Owner fields of this library have a tag that begins with 0, or with 00 if their lease is shorter than that of a grant. Redisson's
-- have none. A process of this library listens to one channel for all its owners, <unlock channel>:<client>, see message.lua. Each of
-- Redisson's waiters has its own, <unlock channel>:<owner>, and subscribes to it after joining.
--
-- An entry of this library is counted before it gets the lock, and a published grant is never taken back: see seen.lua. Its time has a
-- fraction if the last call for it did not count its process. Redisson subtracts whole numbers from the times, and sets its own.

local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- When a waiter of Redisson's gets the lock or gives up, it subtracts its wait time from the times of all entries behind it. This is
-- Redisson's default wait time; others are not recorded anywhere.
local redisson_wait = 300000

local function is_ours(entry)
  return string.match(entry, '^:0%d+$', 37) ~= nil
end

-- fresh returns the new time of an entry of this library behind that many of Redisson's.
local function fresh(q, behind)
  return now + q.place + math.floor(behind * redisson_wait)
end

-- stamp returns the same time with what shows whether the entry's process is counted. The client may ask for many entries in a call.
local counted = {}
local function stamp(q, time, entry)
  local channel = channel_of(q.channel, entry)
  if q.counts == '1' and not counted[channel] then
    counted[channel] = unseen(q.command, q.channel, entry)
  end
  return math.floor(time) + (counted[channel] or 0)
end

-- is_short reports whether an entry's lease is shorter than that of a grant. A grant to it has a count of 0, and it must ask.
local function is_short(entry)
  return string.match(entry, '^:00%d', 37) ~= nil
end

local refused -- what the server said to a message

-- tell sends a message to the waiter of an entry, and reports whether the waiter has gone.
local function tell(q, entry, message)
  local to = is_ours(entry) and string.sub(entry, 1, 36) or entry
  local heard = redis.pcall(q.command, q.channel .. ':' .. to, message)
  if type(heard) ~= 'number' then
    refused = heard.err
    return false
  end
  return heard == 0 and q.counts == '1'
end

local function drop_head(q, entry)
  redis.call('lpop', q.list)
  redis.call('zrem', q.times, entry)
end

-- head drops expired entries at the front, and returns the first live entry and its time. The asking owner, me, counts as live.
local function head(q, me)
  while true do
    local entry = redis.call('lindex', q.list, '0')
    if not entry or entry == me then
      return entry
    end
    local time = tonumber(redis.call('zscore', q.times, entry))
    if not time then -- Redisson would wait for it for ever
      time = now + q.place
      redis.call('zadd', q.times, time, entry)
    end
    if time > now then
      return entry, time
    end
    drop_head(q, entry)
    if not is_ours(entry) then
      tell(q, entry, '0') -- if it lives it joins again
    end
  end
end

-- tell_redisson makes Redisson's waiters at the front ask, up to the first that listens: otherwise each sleeps for the time in its last
-- reply. The waiters before it have died, or are about to subscribe. It stops at the first entry of this library, whose refresh also
-- looks at the lock.
local function tell_redisson(q)
  for i = 0, 99 do
    local entry = redis.call('lindex', q.list, i)
    if not entry or is_ours(entry) or not tell(q, entry, '0') then
      return
    end
  end
end

-- has_redisson reports whether a waiter of Redisson's is in the queue; with behind only if it is not the first. Either it is the last, or
-- it has made the time of the last later.
local function has_redisson(q, behind)
  local last = redis.call('lindex', q.list, '-1')
  if not last or behind and redis.call('llen', q.list) == 1 then
    return false
  elseif not is_ours(last) then
    return true
  end
  local most = now + q.place + 1
  if behind and not is_ours(redis.call('lindex', q.list, '0')) then
    most = most + redisson_wait
  end
  return tonumber(redis.call('zscore', q.times, last) or '0') > most
end

-- wake tells the head that the lock is free, and returns the head and its time; nil if the queue is empty.
local function wake(q, me)
  while true do
    local entry, time = head(q, me)
    if not entry or entry == me then
      return entry
    end
    if not is_ours(entry) then
      tell_redisson(q)
      if time > now + q.place then -- it will come by then, or has died
        time = now + q.place
        redis.call('zadd', q.times, time, entry)
      end
      return entry, time
    end
    if not tell(q, entry, look_message(0, entry)) or is_unseen(time) then
      return entry, time
    end
    drop_head(q, entry)
  end
end

-- told wakes the head, and returns its time, nil if there is none, and whether a waiter of Redisson's is behind it.
local function told(q)
  local entry, time = wake(q)
  return time, entry and has_redisson(q, true)
end

-- pass gives the lock to the head if that belongs to this library, and reports whether it did. Otherwise it tells the head, or all
-- listeners without a queue, that the lock is free. hold is the lock's current field, or ''. It also reports whether a waiter of Redisson's
-- is behind the head: many sleep without an end if that has died.
local function pass(q, hold, lease)
  redis.call('hdel', q.lock, '') -- the right to it is tried here, and a server without memory lets a script go on that has written
  while true do
    local entry, time = head(q)
    if not entry then
      break
    end
    if not is_ours(entry) or lease == '0' then
      redis.call('hdel', q.lock, hold)
      local heard, redisson = told(q)
      if heard then
        return false, redisson
      end
      break
    end
    if entry == hold or q.counts == '1' and not is_unseen(time) and unseen(q.command, q.channel, entry) > 0 then
      drop_head(q, entry)
      tell(q, entry, look_message(0, entry)) -- if it lives it joins again
    else
      redis.call('hset', q.lock, entry, is_short(entry) and '0' or '1')
      if redis.pcall('pexpire', q.lock, lease) ~= 1 then -- after a forced unlock the key would have no expiry
        redis.call('hdel', q.lock, entry, hold)
        local heard, redisson = told(q)
        if heard then
          return false, redisson
        end
        break
      end
      tell(q, entry, grant_message(entry, lease, '-'))
      if refused then
        redis.call('hdel', q.lock, entry) -- nobody has it
        break
      end
      drop_head(q, entry)
      redis.call('hdel', q.lock, hold)
      tell_redisson(q) -- they ask, and most look again when the grant should have been renewed
      return true, has_redisson(q)
    end
  end
  redis.call('hdel', q.lock, hold)
  local heard = redis.pcall(q.command, q.channel, '0') -- waiters for a lock of another kind
  if type(heard) ~= 'number' then
    refused = heard.err
  end
  return false
end

