-- This text stands before the scripts that know of hold keys (see script.go).

-- hold_key returns the key of one level of a read hold. Most have one, and to write a number takes Lua long.
local function hold_key(lock, owner, level)
  return (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. owner .. ':rwlock_timeout:' .. (level == 1 and '1' or level)
end
