-- Takes a fair lock for an owner. Re-entries use acquire.lua.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count
-- KEYS[2]  the queue: a list of owners
-- KEYS[3]  the time at which each gives up: a sorted set of owners
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms
-- ARGV[3]  1: the owner joins the queue if it cannot have the lock, or keeps the place it has there
-- ARGV[4]  how many ms a place lasts
-- ARGV[5]  how to publish: publish or spublish
-- ARGV[6]  unlock channel
-- ARGV[7]  1: the number of receivers tells whether a waiter lives
--
-- Reply 0                      held by the owner
-- Reply {ttl, holder, joined, other}  held by another owner for ttl more ms (-1: without expiry), holder is one of its fields; or free,
--                              and holder is '': the head of the queue was notified, and has ttl ms to ask. joined is 1 if the
--                              owner is in the queue; 2 if this call added it behind a hold or a waiter that may be Redisson's;
--                              other is as in acquire.lua
-- Error FOREIGN                the key holds another hash than a lock: nothing was changed
--
-- A repeat of a call whose reply was lost finds the hold, or the place, already there. The expiry never gets shorter. A call takes a
-- constant number of commands, unless it drops dead waiters.
--
-- Other entries' scores stay unchanged. Redisson subtracts the time of a leaving waiter from all scores, also from those of this
-- library. So behind Redisson's waiters, scores of this library start higher by that time.

local q = {
  lock = KEYS[1], list = KEYS[2], times = KEYS[3],
  place = tonumber(ARGV[4]), command = ARGV[5], channel = ARGV[6], counts = ARGV[7],
}
local owner = ARGV[1]

local ttl = redis.call('pttl', q.lock)
local held = ttl ~= -2 and redis.call('hget', q.lock, owner)

-- joined reports whether the owner is in the queue. It searches the list only if part of the queue was deleted.
local function joined()
  if redis.call('llen', q.list) == redis.call('zcard', q.times) then
    return redis.call('zscore', q.times, owner)
  end
  return redis.call('lpos', q.list, owner)
end

-- join returns the reply's joined: 0, 1 or 2; or nil and an error.
local function join(holder)
  if joined() then
    redis.call('zadd', q.times, 'gt', stamp(q, fresh(q, 0), owner), owner)
    return 1
  end
  if ARGV[3] ~= '1' then
    return 0
  end
  local last = redis.call('lindex', q.list, '-1')
  if not last then
    redis.call('del', q.times) -- times without entries: Redisson takes them for places
  end
  local time = last and is_ours(last) and tonumber(redis.call('zscore', q.times, last))
  if not time then
    local behind = 0
    for _, entry in ipairs(redis.call('lrange', q.list, '0', '-1')) do
      behind = behind + (is_ours(entry) and 0 or 1)
    end
    time = fresh(q, behind)
  end
  redis.call('zadd', q.times, stamp(q, math.max(time, fresh(q, 0)), owner), owner)
  local failed = redis.pcall('rpush', q.list, owner)
  if type(failed) ~= 'number' then -- a time without an entry is a place for Redisson
    redis.call('zrem', q.times, owner)
    return nil, failed
  end
  if holder ~= '' and not is_ours(holder) or time > fresh(q, 0.5) then
    return 2
  end
  return 1
end

local first -- of the queue, if the lock is free: the owner
if not held then
  local foreign, holder, other, time
  if ttl ~= -2 then
    foreign, holder, other = owner_of(redis.call('hrandfield', q.lock, '2'), q.lock)
  else
    first, time = wake(q, owner)
    if time then
      ttl, holder = time - now, ''
    end
  end
  if foreign then
    return foreign
  end
  if holder then
    local joined, failed = join(holder)
    if failed then
      return failed
    end
    return {ttl, holder, joined, other}
  end
end

if not held then
  redis.call('hset', q.lock, owner, '1')
  local failed = redis.pcall('pexpire', q.lock, ARGV[2])
  if failed ~= 1 then -- a hold without expiry could last for ever
    redis.call('del', q.lock)
    return failed
  end
  if first then
    drop_head(q, owner)
  end
elseif held == '0' then -- it was given the lock for longer than its lease
  redis.call('hset', q.lock, owner, '1')
  redis.call('pexpire', q.lock, ARGV[2])
elseif ttl < tonumber(ARGV[2]) then
  redis.call('pexpire', q.lock, ARGV[2])
end
return 0
