-- Takes many locks, all or none, each for its own owner, which holds nothing yet.
--
-- KEYS[k]    the locks, each followed by its fencing counter if it has one, all of one cluster slot
-- ARGV[n]    the number of locks in a row with the same lease and number of keys
-- ARGV[n+1]  lease in ms
-- ARGV[n+2]  number of keys of each: 1, or 2 with a counter; the owner field of each follows, and then the next row
--
-- Reply {0}                   all are held, and none has a counter
-- Reply {0, tokens}           all are held; a token for each, as in acquire.lua
-- Reply {which, ttl, holder, other}  none is taken: lock number which, counted from 1, is held by another owner, see acquire.lua
--
-- After an error none is taken either.
--
-- A repeat of a call whose reply was lost finds all locks held, and changes only the expiries. If a lock was lost in between, the
-- others stay as they are.
--
-- The script checks all locks, and then takes each by acquire.lua, which is sent along as the function acquire. If all are free, one
-- command shows it, and those without a counter need no more; if none has one, the arguments need no lists of their own, either. If one
-- fails, the locks taken before it are released: they were free, so they have no other owner.

local call, k = redis.call, 0

-- undo releases the first n locks, except those that were held before. It returns the error with which the last of them was refused.
local function undo(names, n, held, why)
  for which = 1, n do
    if not held[which] then
      call('del', names[which])
    end
  end
  local failed = type(why) == 'table' and why or redis.error_reply(tostring(why)) -- a text before Redis 7
  return failed
end

local plain, n = true, 1
while n < #ARGV do
  plain, n = plain and ARGV[n + 2] == '1', n + 3 + ARGV[n]
end

local function take_free()
  local n = 1
  while n < #ARGV do
    local last, lease = n + 2 + ARGV[n], ARGV[n + 1]
    for n = n + 3, last do
      k = k + 1
      call('hset', KEYS[k], ARGV[n], '1')
      call('pexpire', KEYS[k], lease)
    end
    n = last + 1
  end
end

if plain and redis.pcall('exists', unpack(KEYS)) == 0 then -- or this user may not ask that
  local done, why = pcall(take_free)
  if not done then
    local failed = undo(KEYS, k, {}, why)
    return failed
  end
  return {0}
end

local names, fences, owners, leases, held = {}, {}, {}, {}, {}
n = 1
while n < #ARGV do
  local last, lease, keys = n + 2 + ARGV[n], ARGV[n + 1], ARGV[n + 2]
  for n = n + 3, last do
    local which = #names + 1
    k = k + 1
    names[which], owners[which], leases[which] = KEYS[k], ARGV[n], lease
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

local free = not plain and redis.pcall('exists', unpack(names)) == 0
for which, name in ipairs(free and {} or names) do
  if call('pttl', name) ~= -2 then
    held[which] = call('hexists', name, owners[which]) == 1
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
      call('hset', name, owners[which], '1')
      call('pexpire', name, leases[which])
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
  local failed = undo(names, now, held, why)
  return failed
end
return {0, tokens}
