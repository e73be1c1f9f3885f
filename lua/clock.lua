-- A prelude (see script.go) for scripts that need the time.

-- clock returns the server's time in ms.
local function clock()
  local t = redis.call('time')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
