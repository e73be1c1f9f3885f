-- A prelude (see script.go) for scripts that use hold keys.

-- hold_key returns the key of one level of a read hold. Most holds have one level, and formatting a number is slow in Lua.
local function hold_key(lock, owner, level)
  return (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. owner .. ':rwlock_timeout:' .. (level == 1 and '1' or level)
end
