-- Takes a read/write lock for a writer, or raises its re-entry count to the given number.
--
-- KEYS[1]  the lock: a hash (see read_acquire.lua)
-- KEYS[2]  optional: the marks of waiting writers, a sorted set: a refused writer leaves a mark. In the script with a token: the
--          fencing counter, raised by every acquire that counts
-- KEYS[3]  optional, in the script with a token: the marks
-- ARGV[1]  owner field, which ends with ':write'
-- ARGV[2]  lease in ms
-- ARGV[3]  the owner's count after this call; 1 for a first acquire
-- ARGV[4]  field of the reader that becomes the writer and stays a reader; otherwise ''
-- ARGV[5]  with marks: how to publish: publish or spublish
-- ARGV[6]  with marks: unlock channel; '' if nothing shows whether the writer's process lives
--
-- Reply 0                       held by the owner, with that count
-- Reply token                   the same, in the script with a token
-- Reply {left, holder, marked, other}  held by others; holder is a holder's field, or '', which ends in left ms (-1: never);
--                               marked is 1 if the writer has a mark; other is 1 if it is held as a lock without sides, otherwise
--                               missing
-- Reply -1                      a re-entry, but the hold to re-enter, or the reader's, is gone
-- Error FOREIGN                 the key holds another hash than a lock: nothing was changed
-- Error TOKEN                   the counter gives no token, see raise.lua: no hold was changed
--
-- Lines that begin with "fenced" are only in the script with a token (see script.go), which raises the counter when acquire.lua does.
--
-- A mark is the writer's field, followed by the field of the reader that wants to become the writer, if any, and by ' -' if nothing
-- shows whether the process lives: it does not listen on <unlock channel>:<client>, or this server does not count it (seen.lua). Its
-- score is its end on the server's clock, in ms: a second after the time at which the waiting writer asks again. The set expires with its
-- last mark.
--
-- A reader without any hold keys is dead, and is removed before the lock is granted or refused. A waiting writer looks again when the
-- first reader's lease ends, but only after a second: nothing is published then, nor if the other readers were Redisson's and have left.
--
-- A repeat of a call whose reply was lost finds the count already there, and changes only the expiry. The count never falls here, and
-- a re-entry never shortens the expiry.
--
-- Redis does not roll back a failed script. So every step that can fail comes before the hold is written: the first access to each
-- key, the counter, and reading a field that should be a number.

local lock, marks, owner, within = KEYS[1], KEYS[2], ARGV[1], ARGV[4]
-- fenced local fence = KEYS[2]
-- fenced marks = KEYS[3]
local lease, want = tonumber(ARGV[2]), tonumber(ARGV[3])
local ttl = redis.call('pttl', lock)
local mode = ttl ~= -2 and redis.call('hget', lock, 'mode')
local held = mode == 'write' and redis.call('hget', lock, owner)
local more = held and want - tonumber(held)
local entry = owner .. (within ~= '' and ' ' .. within or '')

local function mark(rest)
  local lasts = (rest < 0 and 60000 or math.min(rest, 1e15)) + 1000
  local clock = redis.call('time')
  local ends = clock[1] * 1000 + math.floor(clock[2] / 1000) + lasts
  local shown = ARGV[6] ~= '' and unseen(ARGV[5], ARGV[6], owner) == 0
  local entries = shown and {entry, entry .. ' -'} or {entry .. ' -', entry}
  redis.pcall('zrem', marks, entries[2])
  local added = redis.pcall('zadd', marks, ends, entries[1])
  if type(added) ~= 'number' then
    return 0 -- without memory, say; then readers do not wait for it
  end
  if redis.call('pttl', marks) < lasts and redis.pcall('pexpire', marks, lasts) ~= 1 then -- no key may stay without expiry
    redis.call('zrem', marks, entries[1])
    return 0
  end
  return 1
end

if not held then
  if want > 1 or within ~= '' and (not mode or redis.call('hexists', lock, within) == 0) then
    return -1
  end
  if ttl ~= -2 then
    local foreign, holder = owner_of(redis.call('hrandfield', lock, '2'), lock)
    if foreign then
      return foreign
    end
    local left, _ = ttl, nil
    if mode == 'read' then
      _, left, holder = readers(lock, within)
    end
    if mode ~= 'read' or left > 0 then
      local marked = marks and mark(left) or 0
      local other = not mode and 1 or nil
      return {left, holder, marked, other}
    end
    if within == '' then
      redis.call('del', lock)
      ttl = -2
    end
  end
end

if ttl ~= -2 then
  redis.call('hdel', lock, '') -- see release.lua
end
-- fenced local token
-- fenced if not held or more > 0 or want > 1 then
-- fenced   token = raise(fence)
-- fenced else
-- fenced   token = tonumber(redis.call('get', fence) or 0)
-- fenced end
-- fenced if type(token) == 'table' then
-- fenced   return token
-- fenced end
if not held then
  redis.call('hset', lock, 'mode', 'write', owner, ARGV[3])
elseif more > 0 then
  redis.call('hincrby', lock, owner, more)
end
if ttl == -2 then
  local failed = redis.pcall('pexpire', lock, ARGV[2])
  if failed ~= 1 then -- a hold without expiry could last for ever
    redis.call('del', lock)
    return failed
  end
elseif ttl < lease then
  redis.call('pexpire', lock, ARGV[2])
end
if marks then
  redis.pcall('zrem', marks, entry, entry .. ' -') -- the hold is written
end
-- fenced do return token end
return 0
