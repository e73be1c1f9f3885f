-- Reserves fencing tokens for an owner that holds the lock.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count (see acquire.lua)
-- KEYS[2]  the fencing counter
-- ARGV[1]  owner field
-- ARGV[2]  the number of tokens, in addition to the first
--
-- Reply {first, spare}  the owner gets first and the next spare numbers; spare is missing if there are none
-- Reply 0               not held by the owner: nothing was changed
-- Error TOKEN           the counter gives no token, see raise.lua: nothing was changed
--
-- Later holders raise the counter further. So an owner that has lost the lock gets no tokens: they would be above the current
-- holder's. A repeat reserves new tokens.

if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local first, spare = raise(KEYS[2], tonumber(ARGV[2]))
local failed = type(first) == 'table' and first
if failed then
  return failed
end
return {first, spare}
