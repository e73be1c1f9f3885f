-- This text stands before the scripts that know of hold keys (see script.go).

-- hold_keys returns what the hold keys of a reader begin with; the level comes behind it.
local function hold_keys(lock, owner)
  return (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}') .. ':' .. owner .. ':rwlock_timeout:'
end
