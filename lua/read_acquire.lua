-- Takes a share of a read/write lock for a reader, or raises its re-entry count to the given number.
--
-- KEYS[1]  the lock: a hash, mode = read or write, and field = count for each owner; a writer's field ends with ':write'
-- KEYS[2]  optional: the marks of waiting writers, a sorted set (see write_acquire.lua). Without it, waiting writers have no priority
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms
-- ARGV[3]  the owner's count after this call; 1 for a first acquire
-- ARGV[4]  field of the writer whose section this call is in, and who admits the reader; otherwise ''
-- ARGV[5]  with KEYS[2]: how many ms a free lock is kept for waiting writers
-- ARGV[6]  with KEYS[2]: how to publish: publish or spublish
-- ARGV[7]  with KEYS[2]: unlock channel
--
-- Reply 0                  held by the owner, with that count
-- Reply {left, holder, 0, other}  unavailable for left more ms (-1: held without expiry), or until a message: a writer holds it or
--                          waits; holder is a holder's field, or ''; other is 1 if it is held as a lock without sides, otherwise
--                          missing
-- Reply -1                 a re-entry, but the hold to re-enter, or the writer's, is gone
-- Error FOREIGN            the key holds another hash than a lock: nothing was changed
--
-- Each level of a read hold has its own hold key, {<lock>}:<owner>:rwlock_timeout:<level>, which expires with its lease. They show
-- Redisson which readers live. Their numbers have no gaps, and the hash never expires before them.
--
-- A mark keeps new readers out, so that the writer gets the lock once the current readers have left. A mark is dropped when it
-- expires, or when its process no longer listens. If the lock is free, the writer gets a short time to take it.
--
-- A reader without any hold keys is dead. If there are many fields, each new reader checks three of them, and removes those of dead
-- readers. As each death adds only one field, they do not pile up.
--
-- A repeat of a call whose reply was lost finds the count already there, and changes only the expiries. The count never falls here,
-- and no expiry gets shorter.
--
-- Redis does not roll back a failed script. So every step that can fail comes before the hold is written: the first access to each
-- key, and reading a field that should be a number. A hold key without a field has no meaning.

local lock, marks, owner, within = KEYS[1], KEYS[2], ARGV[1], ARGV[4]
local lease, want = tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl = redis.call('pttl', lock)
local mode = ttl ~= -2 and redis.call('hget', lock, 'mode')
local held = mode and redis.call('hget', lock, owner)

-- awaited returns how many ms longer waiting writers keep new readers out; nil if none do.
local function awaited()
  local all = redis.call('zrange', marks, '0', '-1', 'withscores')
  if #all == 0 then
    return nil
  end
  local clock = redis.call('time')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local last = ttl == -2 and now + ARGV[5] or math.huge
  local longest
  for i = 1, #all, 2 do
    local ends = math.min(all[i + 1], last)
    local listen = {'', 1}
    if string.sub(all[i], -2) ~= ' -' then
      listen = listening(ARGV[6], channel_of(ARGV[7], all[i]))
    end
    if ends <= now or not listen.err and listen[2] == 0 then
      redis.call('zrem', marks, all[i])
    else
      longest = math.max(longest or 0, ends - now)
      if ends == last then
        redis.call('zadd', marks, ends, all[i])
      end
    end
  end
  if not longest then -- others sleep because of what is gone now
    redis.pcall(ARGV[6], ARGV[7], '01')
  end
  return longest
end

if not held then
  if want > 1 or within ~= '' and (mode ~= 'write' or redis.call('hexists', lock, within) == 0) then
    return -1
  end
  local foreign, holder = nil, ''
  if ttl ~= -2 then
    -- One of the two checked fields may be the mode.
    local field = mode and redis.call('hrandfield', lock)
    local fields = field and field ~= 'mode' and {field} or redis.call('hrandfield', lock, '2')
    foreign, holder = owner_of(fields, not mode and lock)
  end
  if foreign then
    return foreign
  end
  local left
  if ttl ~= -2 and mode ~= 'read' then
    left = within == '' and ttl
  else
    left = marks and awaited()
  end
  if left then
    local other = ttl ~= -2 and not mode and 1 or nil
    return {left, holder, 0, other}
  end
end

local more = held and want - tonumber(held)
for level = 1, want do
  local key = hold_key(lock, owner, level)
  if not held or redis.call('pttl', key) < lease then
    redis.call('set', key, '1', 'px', ARGV[2])
  end
end
if not mode then
  redis.call('hset', lock, 'mode', 'read', owner, ARGV[3])
elseif not held then
  local some = mode == 'read' and redis.call('hlen', lock) > 20 and redis.call('hrandfield', lock, '3', 'withvalues') or {}
  for i = 1, #some, 2 do
    if some[i] ~= 'mode' and lives(lock, some[i], some[i + 1]) == 0 then
      redis.call('hdel', lock, some[i])
    end
  end
  redis.call('hset', lock, owner, ARGV[3])
elseif more > 0 then
  redis.call('hincrby', lock, owner, more)
end
if ttl < lease then
  local failed = redis.pcall('pexpire', lock, ARGV[2])
  if failed ~= 1 then -- a hold without expiry could last for ever
    if not mode then
      redis.call('del', lock)
    elseif not held then
      redis.call('hdel', lock, owner)
    end
    return failed
  end
end
return 0
