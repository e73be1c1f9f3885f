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

local names, fences, owners, leases, held, k, n = {}, {}, {}, {}, {}, 0, 1
while n <= #ARGV do
  local last, lease, keys = n + 2 + ARGV[n], ARGV[n + 1], ARGV[n + 2]
  for i = n + 3, last do
    local which = #names + 1
    k = k + 1
    names[which], owners[which], leases[which] = KEYS[k], ARGV[i], lease
    if keys == '2' then
      k = k + 1
      fences[which] = KEYS[k]
    end
  end
  n = last + 1
end

local function acquires(which)
  return acquire({names[which], fences[which]}, {owners[which], leases[which]})
end

local free = redis.pcall('exists', unpack(names)) == 0 -- or this user may not ask that
for which, name in ipairs(free and {} or names) do
  if redis.call('pttl', name) ~= -2 then
    held[which] = redis.call('hexists', name, owners[which]) == 1
    if not held[which] then
      local refused = acquires(which)
      local ttl, holder, other = refused[1], refused[2], refused[4]
      return refused.err and refused or {which, ttl, holder, other}
    end
  end
end

local tokens, now = {}, 0

-- take takes the locks, in order. It returns an error that one of them is refused with.
local function take()
  for which, name in ipairs(names) do
    local token = 0
    now = which
    if free and not fences[which] then
      redis.call('hset', name, owners[which], '1')
      redis.call('pexpire', name, leases[which])
    else
      token = acquires(which)
    end
    if type(token) == 'table' then
      return token
    end
    tokens[which] = token
  end
end

local _, why = pcall(take)
if why then
  for which = 1, now do
    if not held[which] then
      redis.call('del', names[which])
    end
  end
  local failed = type(why) == 'table' and why or redis.error_reply(tostring(why)) -- a text before Redis 7
  return failed
end
return {0, tokens}
