-- This text stands before the scripts that give fencing tokens (see script.go).

-- raise adds one to a fencing counter, and returns it: the token. A counter that gives none is an error, and stays as it is: 0 stands for
-- no token, and numbers in scripts are exact up to 2^53, above which tokens would repeat.
local function raise(counter)
  local last = redis.pcall('get', counter)
  if type(last) == 'table' then
    return last
  end
  local n = last and tonumber(string.match(last, '^-?%d+$'))
  if n and (n < 0 or n >= 9007199254740991) then
    return {err = 'TOKEN the fencing counter is ' .. last .. ', and tokens go from 1 to 9007199254740991: set it to the highest that was given'}
  end
  return redis.pcall('incr', counter)
end
