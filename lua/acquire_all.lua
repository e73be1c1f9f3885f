-- Takes many locks, or none of them, each for an owner of its own that holds nothing yet.
--
-- KEYS[k]    the locks, each with its fencing counter behind it if it has one, all of one cluster slot
-- ARGV[n]    for each lock, so n is 1, 4, 7, ...: owner field
-- ARGV[n+1]  lease in ms
-- ARGV[n+2]  how many keys it has: 1, or 2 with a counter
--
-- Reply {0, tokens}           all are held; one token for each as in acquire.lua
-- Reply {which, ttl, holder, other}  none is taken: the lock with that number, counted from 1, is held by another, see acquire.lua
--
-- After an error none is taken either.
--
-- A repeat of a call whose reply was lost finds all of them held, and changes nothing but the expiries. If one was lost in between,
-- the others stay as they are.
--
-- Each lock is taken by acquire.lua, which is sent along as the function acquire, after a look at all of them. If that fails,
-- those before it are undone: a lock that was free belongs to its new owner alone.

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
