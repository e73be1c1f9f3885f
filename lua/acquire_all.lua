-- Takes many locks, all or none, each for its own owner, which holds nothing yet.
--
-- KEYS[k]    the locks, each followed by its fencing counter if it has one, all of one cluster slot
-- ARGV[n]    for each lock, so n is 1, 4, 7, ...: owner field
-- ARGV[n+1]  lease in ms
-- ARGV[n+2]  number of its keys: 1, or 2 with a counter
--
-- Reply {0, tokens}           all are held; a token for each, as in acquire.lua
-- Reply {which, ttl, holder, other}  none is taken: lock number which, counted from 1, is held by another owner, see acquire.lua
--
-- After an error none is taken either.
--
-- A repeat of a call whose reply was lost finds all locks held, and changes only the expiries. If a lock was lost in between, the
-- others stay as they are.
--
-- The script checks all locks, and then takes each by acquire.lua, which is sent along as the function acquire. If one fails, the
-- locks taken before it are released: they were free, so they have no other owner.

local locks, k = {}, 0
for i = 1, #ARGV, 3 do
  local keys = {}
  for n = 1, tonumber(ARGV[i + 2]) do
    k = k + 1
    keys[n] = KEYS[k]
  end
  locks[#locks + 1] = {keys = keys, args = {ARGV[i], ARGV[i + 1], '1'}}
end

for which, lock in ipairs(locks) do
  if redis.call('pttl', lock.keys[1]) ~= -2 then
    lock.held = redis.call('hexists', lock.keys[1], lock.args[1]) == 1
    if not lock.held then
      local refused = acquire(lock.keys, lock.args)
      local ttl, holder, other = refused[1], refused[2], refused[4]
      return refused.err and refused or {which, ttl, holder, other}
    end
  end
end

local tokens = {}
for which, lock in ipairs(locks) do
  local done, token = pcall(acquire, lock.keys, lock.args)
  if not done or type(token) == 'table' then
    for before = 1, which - 1 do
      if not locks[before].held then
        redis.call('del', locks[before].keys[1])
      end
    end
    local failed = type(token) == 'table' and token or redis.error_reply(tostring(token)) -- a text before Redis 7
    return failed
  end
  tokens[which] = token
end
return {0, tokens}
