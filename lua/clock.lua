-- This text stands before the scripts that ask what time it is (see script.go).

-- clock is the server's time in ms.
local function clock()
  local t = redis.call('time')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
