-- The queue of the fair lock, as Redisson has it. This text stands before each script about it.
--
-- A queue q has these fields:
--
-- lock, list, times  keys: the lock; the entries in their order, an entry is the owner field of one waiter; when each gives up,
--                    in ms on the server's clock: Redisson drops the first one when that is over
-- place              for how many ms an entry of this library lasts; its waiter refreshes it
-- command, channel   publish or spublish, and the unlock channel, with which those of the waiters begin
-- counts             '1': a message that nobody received tells that its waiter has gone
--
-- Owner fields of this library have a tag that begins with 0, and with 00 if their lease is shorter than that of a grant. Java's have
-- none. Their process listens to one channel for all of them, <unlock channel>:<client>, see message.lua. Redisson's waiters have one
-- each, <unlock channel>:<owner>, and subscribe to it after they have joined.

local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Whoever gets a lock of Redisson's takes the time that it was to wait off everybody's behind it, and so does a waiter that gives up.
-- This is how much that is by default; of those who said another time, nobody knows it.
local redisson_wait = 300000

local function is_ours(entry)
  return string.match(entry, '^:0%d', 37) ~= nil
end

-- fresh is the time of an entry of this library behind so many of Redisson's.
local function fresh(q, behind)
  return now + q.place + behind * redisson_wait
end

-- is_short reports whether an entry's lease is shorter than that of a grant. One to it is a count of 0, and it has to ask.
local function is_short(entry)
  return string.match(entry, '^:00%d', 37) ~= nil
end

local refused -- what the server said to a message

-- tell sends a message to the waiter of an entry, and reports whether it has gone.
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

-- head returns the first entry and its time, after dropping those before it whose time is over. One that asks, me, is not over.
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

-- tell_redisson tells the waiters of Redisson's at the front to ask, up to the first that listens: each asks again when the time is over
-- that it was answered. Those before it have died, or are about to subscribe. Behind one of this library nobody is told, for that
-- looks by itself when its place is refreshed.
local function tell_redisson(q)
  for i = 0, 99 do
    local entry = redis.call('lindex', q.list, i)
    if not entry or is_ours(entry) or not tell(q, entry, '0') then
      return
    end
  end
end

-- wake tells the head that the lock is free, and returns it and its time; nil if there is none.
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
    if not tell(q, entry, look_message(0, entry)) then
      return entry, time
    end
    drop_head(q, entry)
  end
end

-- pass gives the lock to the head if that is of this library, and reports whether it did. Otherwise it tells the head, or whoever
-- listens, that the lock is free. hold is the field that the lock has until then, or ''.
local function pass(q, hold, lease)
  redis.call('hdel', q.lock, '') -- the right to it is tried here, and a server without memory lets a script go on that has written
  while true do
    local entry = head(q)
    if not entry then
      break
    end
    if not is_ours(entry) or lease == '0' then
      redis.call('hdel', q.lock, hold)
      if wake(q) then
        return false
      end
      break
    end
    redis.call('hset', q.lock, entry, is_short(entry) and '0' or '1')
    redis.call('pexpire', q.lock, lease)
    local gone = entry == hold or tell(q, entry, grant_message(entry, lease, '-'))
    if not refused then
      drop_head(q, entry)
      if not gone then
        redis.call('hdel', q.lock, hold)
        tell_redisson(q) -- they ask, and look again when the grant should have been renewed
        return true
      end
    end
    redis.call('hdel', q.lock, entry)
    if refused then
      break
    end
  end
  redis.call('hdel', q.lock, hold)
  local heard = redis.pcall(q.command, q.channel, '0') -- waiters for a lock of another kind
  if type(heard) ~= 'number' then
    refused = heard.err
  end
  return false
end

