-- Gives an owner that holds the lock one more fencing token.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count (see acquire.lua)
-- KEYS[2]  the fencing counter
-- ARGV[1]  owner field
--
-- Reply token  the new token
-- Reply 0      not held by the owner: nothing was changed
-- Error TOKEN  the counter gives no token, see raise.lua: nothing was changed
--
-- An owner that has lost the lock gets none: it would be above the current holder's. A repeat gives another token.

if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
  return 0
end
local token = raise(KEYS[2])
return token
