-- Takes a lock for an owner, or raises its re-entry count to the given number.
--
-- KEYS[1]      the lock: a hash, field = owner, value = count
-- KEYS[2]      optional: the fencing counter, raised by every acquire that counts
-- KEYS[#KEYS]  with ARGV[3]: the queue of waiting processes, a sorted set of owners in order; the suffix ' s' marks owners with
--              a short lease, ' f' other owners that want a token
-- ARGV[1]      owner field
-- ARGV[2]      lease in ms
-- ARGV[3]      optional: lease in ms of a grant to another process. With it the owner joins the queue if the lock is held, or keeps
--              the place it has there; '' without a queue
-- ARGV[4]      with a queue: unlock channel. Without: the owner's count after this call; missing in a first acquire, which makes it 1
-- ARGV[5]      with a queue: spublish if that is how to publish; otherwise '' or missing
-- ARGV[6]      optional, with a queue: 1 if the owner's lease is shorter than that of a grant. A grant to it has a count of 0, and the
--              owner must ask
--
-- Reply token                  held by the owner, with that count; 0 or more, and 0 without a counter
-- Reply {ttl, holder, joined, other}  held by another owner for ttl more ms (-1: without expiry); holder is one of its fields; joined
--                              is the owner's place in the queue, from 1 on, 0 if it has none; other is 1 if the fields show a read/write lock, otherwise missing
-- Reply -1                     a re-entry, but the hold to re-enter is gone
-- Error FOREIGN                the key holds another hash than a lock: nothing was changed
-- Error TOKEN                  the counter gives no token, see raise.lua: nothing was changed
--
-- Every owner in the queue asks again when ttl is over, so the queue expires a second after the last of these times. Scores follow
-- the order; they are odd for owners that ask again within the lease of a grant, and have a fraction for processes that this server does
-- not count among its listeners (seen.lua).
--
-- A repeat of a call whose reply was lost finds the count already there, and changes only the expiry. The count never falls here,
-- and the expiry never gets shorter, except when a first acquire finds a count of 0, which no hold has.
--
-- A re-entry that asks for a token raises the counter again in a repeat: its hold has no token yet, and the count may come from other
-- levels. So it never gets an earlier hold's token.
--
-- Redis does not roll back a failed script. So every step that can fail comes before the hold is written: the first access to each
-- key, the counter, and reading a field that should be a number. If a key cannot be accessed, nothing was written.

local queue = (ARGV[3] or '') ~= '' and KEYS[#KEYS]
local want = not queue and tonumber(ARGV[4]) or 1
local fence = #KEYS > (queue and 2 or 1) and KEYS[2]
local entry
if queue then
  entry = ARGV[1] .. (ARGV[6] == '1' and ' s' or fence and ' f' or '') -- as in queue_entry.lua
end

local ttl = redis.call('pttl', KEYS[1])
local held, fields = false, nil
if ttl ~= -2 then
  fields = want == 1 and redis.call('hrandfield', KEYS[1], '2') or {}
  if #fields ~= 1 or fields[1] == ARGV[1] then -- one that is another's tells it, too
    held = redis.call('hget', KEYS[1], ARGV[1])
  end
end

if not held then
  if want > 1 then
    return -1
  end
  if ttl ~= -2 then
    -- include owner_of
    local foreign, holder, other = owner_of(fields, KEYS[1])
    if foreign then
      return foreign
    end
    local joined = 0
    if queue then
      local soon = ttl >= 0 and ttl <= tonumber(ARGV[3]) and 1 or 0
      local counts = ARGV[5] == 'spublish' and 'shardnumsub' or 'numsub' -- as in seen.lua
      if redis.pcall('pubsub', counts, ARGV[4] .. ':' .. string.sub(entry, 1, 36))[2] == 0 then
        soon = soon + 0.5
      end
      local ahead = redis.call('zcard', queue)
      local last = ahead > 0 and redis.call('zrange', queue, '-1', '-1', 'withscores')[2]
      local added = redis.pcall('zadd', queue, 'nx', math.floor((last or 0) / 2) * 2 + 2 + soon, entry)
      local score = added ~= 1 and redis.call('zscore', queue, entry)
      if added == 0 then
        redis.call('zadd', queue, math.floor(score / 2) * 2 + soon, entry)
      end
      if added == 1 or score then -- otherwise it is without memory, say; then it is not told of a grant, but of the rest
        local lasts = (ttl < 0 and 60000 or math.min(ttl, 1e15)) + 1000 -- Redis refuses a time that is too far away
        if not last or redis.call('pttl', queue) < lasts then
          local failed = redis.pcall('pexpire', queue, lasts)
          if failed ~= 1 then -- the queue may have no expiry yet
            redis.call('zrem', queue, entry)
            return failed
          end
        end
        local rank = added == 1 and ahead or redis.pcall('zrank', queue, entry)
        joined = type(rank) == 'number' and rank + 1 or 1
      end
    end
    return {ttl, holder, joined, other}
  end
end

local more = held and want - tonumber(held)
local token = 0
if fence and (not held or more > 0 or want > 1) then
  -- include raise
  token = raise(fence)
  if type(token) == 'table' then
    return token
  end
elseif fence then
  token = tonumber(redis.call('get', fence) or 0)
end
if not held or more > 0 then
  redis.call('hincrby', KEYS[1], ARGV[1], more or '1')
end

if not held then
  local failed = redis.pcall('pexpire', KEYS[1], ARGV[2])
  if failed ~= 1 then -- a hold without expiry could last for ever
    redis.call('del', KEYS[1])
    return failed
  end
elseif ttl < tonumber(ARGV[2]) or held == '0' then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
if queue then
  redis.pcall('zrem', queue, entry) -- the hold is written
end
return token
