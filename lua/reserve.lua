-- Reserves fencing tokens for an owner that holds the lock.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count (see acquire.lua)
-- KEYS[2]  the fencing counter
-- ARGV[1]  owner field
-- ARGV[2]  how many tokens, beside one
--
-- Reply {first, spare}  that one, and as many above it, are the owner's own; spare is missing if there are none
-- Reply 0               not held by the owner: nothing was changed
-- Error TOKEN           the counter gives no token, see raise.lua: nothing was changed
--
-- Whoever gets the lock later raises the counter further. That is why an owner which has lost the lock gets none: its tokens would be above
-- that of whoever has it. A repeat reserves others.

if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local first, spare = raise(KEYS[2], tonumber(ARGV[2]))
local failed = type(first) == 'table' and first
if failed then
  return failed
end
return {first, spare}
