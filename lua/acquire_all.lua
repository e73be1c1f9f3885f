-- Takes many locks, all or none, each for its own owner, which holds nothing yet.
--
-- KEYS[k]    the locks, each followed by its fencing counter if it has one, all of one cluster slot
-- ARGV[n]    the number of locks in a row with the same lease and number of keys
-- ARGV[n+1]  lease in ms
-- ARGV[n+2]  number of keys of each: 1, or 2 with a counter; the owner field of each follows, and then the next row
--
-- Reply {0, tokens}           all are held; a token for each, as in acquire.lua
-- Reply {which, ttl, holder, other}  none is taken: lock number which, counted from 1, is held by another owner, see acquire.lua
--
-- After an error none is taken either.
--
-- A repeat of a call whose reply was lost finds all locks held, and changes only the expiries. If a lock was lost in between, the
-- others stay as they are.
--
-- The script checks all locks, and then takes each by acquire.lua, which is sent along as the function acquire; if all are free, one
-- command shows it, and those without a counter need no more. If one fails, the locks taken before it are released: they were free, so
-- they have no other owner.

local locks, names, k, n = {}, {}, 0, 1
while n <= #ARGV do
  local last, lease, keys = n + 2 + ARGV[n], ARGV[n + 1], tonumber(ARGV[n + 2])
  for i = n + 3, last do
    local its = {}
    for key = 1, keys do
      k = k + 1
      its[key] = KEYS[k]
    end
    names[#names + 1] = its[1]
    locks[#locks + 1] = {keys = its, args = {ARGV[i], lease, '1'}}
  end
  n = last + 1
end

local free = redis.pcall('exists', unpack(names)) == 0 -- or this user may not ask that
for which, lock in ipairs(free and {} or locks) do
  if redis.call('pttl', lock.keys[1]) ~= -2 then
    lock.held = redis.call('hexists', lock.keys[1], lock.args[1]) == 1
    if not lock.held then
      local refused = acquire(lock.keys, lock.args)
      local ttl, holder, other = refused[1], refused[2], refused[4]
      return refused.err and refused or {which, ttl, holder, other}
    end
  end
end

local function take(lock)
  if not free or lock.keys[2] then
    return acquire(lock.keys, lock.args)
  end
  redis.call('hset', lock.keys[1], lock.args[1], '1')
  redis.call('pexpire', lock.keys[1], lock.args[2])
  return 0
end

local tokens = {}
for which, lock in ipairs(locks) do
  local done, token = pcall(take, lock)
  if not done or type(token) == 'table' then
    for upto = 1, which do
      if not locks[upto].held then
        redis.call('del', names[upto])
      end
    end
    local failed = type(token) == 'table' and token or redis.error_reply(tostring(token)) -- a text before Redis 7
    return failed
  end
  tokens[which] = token
end
return {0, tokens}
