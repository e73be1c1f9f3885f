-- Takes a share of a read/write lock for a reader, or brings its re-entry count up to what the reader expects.
--
-- KEYS[1]  the lock: a hash, mode = read or write, and field = count for each owner; a writer's field ends with ':write'
-- KEYS[2]  optional: the marks of the writers that wait, a sorted set (see write_acquire.lua). Without it they are not heeded
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms
-- ARGV[3]  the count that the owner has once this call succeeded; 1 for a first acquire
-- ARGV[4]  field of the writer in whose section this is, which lets the reader in; '' if there is none
-- ARGV[5]  with KEYS[2]: for how many ms a free lock is kept for the writers that wait
-- ARGV[6]  with KEYS[2]: how to publish: publish or spublish
-- ARGV[7]  with KEYS[2]: unlock channel
--
-- Reply 0                  held by the owner, ARGV[3] deep
-- Reply {left, holder, 0, other}  not to be had for so many ms more (-1: held without expiry), or until a message comes: a writer
--                          holds it, or waits; holder is a field of somebody who holds it, or ''; other is 1 if it is held as a lock
--                          without sides, or not there
-- Reply -1                 a re-entry, but the hold to re-enter, or the writer's, is gone
-- Error FOREIGN            the key holds a hash that is no lock: nothing was changed
--
-- Each level of a read hold has a hold key of its own, {<lock>}:<owner>:rwlock_timeout:<level>, which expires with its lease.
-- Redisson knows from these which readers live. They are numbered without a gap, and the hash never expires before them.
--
-- A mark keeps new readers out, so that the writer gets the lock when the readers that are in have left. One whose
-- time is over, or whose process does not listen any more, is dropped. If the lock is free, the writer has a short time left to
-- take it.
--
-- A reader whose hold keys are all gone is dead. Where many fields are, a reader that comes in looks at three and takes those of dead
-- readers out, so that they do not pile up: each death adds one.
--
-- A repeat of a call whose reply was lost finds the count already there and changes nothing but
-- the expiries. The count never falls here, and no expiry is shortened.
--
-- Redis does not roll back a script that fails. So whatever can fail comes before the hold is written: the first access to each
-- key, and a field that is no number. A hold key without a field means nothing.

local lock, marks, owner, within = KEYS[1], KEYS[2], ARGV[1], ARGV[4]
local lease, want = tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl = redis.call('pttl', lock)
local mode = ttl ~= -2 and redis.call('hget', lock, 'mode')
local held = mode and redis.call('hget', lock, owner)

-- awaited returns for how many ms more writers that wait keep new readers out; nil if none do.
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
      local asked = ARGV[6] == 'publish' and 'numsub' or 'shardnumsub'
      listen = redis.pcall('pubsub', asked, ARGV[7] .. ':' .. string.sub(all[i], 1, 36))
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
    redis.pcall(ARGV[6], ARGV[7], '1')
  end
  return longest
end

if not held then
  if want > 1 or within ~= '' and (mode ~= 'write' or redis.call('hexists', lock, within) == 0) then
    return -1
  end
  local foreign, holder = nil, ''
  if ttl ~= -2 then
    -- Of the two fields that tell, the mode may be one.
    local field = mode and redis.call('hrandfield', lock)
    local fields = field and field ~= 'mode' and {field} or redis.call('hrandfield', lock, '2')
    foreign, holder = owner_of(fields)
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
  redis.call('pexpire', lock, ARGV[2])
end
return 0
