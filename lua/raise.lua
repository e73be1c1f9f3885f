-- This text stands before the scripts that give fencing tokens (see script.go).

-- raise adds one to a fencing counter, and returns it: the token; and, if some are to be spare and can be had, how many of those above it are
-- the caller's, too. A counter that gives none is an error, and stays as it is: 0 stands for no token, and numbers in scripts are exact up to
-- 2^53, above which tokens would repeat.
local function raise(counter, spare)
  local last = redis.pcall('get', counter)
  if type(last) == 'table' then
    return last
  end
  local n = last and tonumber(string.match(last, '^-?%d+$'))
  if n and (n < 0 or n >= 9007199254740991) then
    return {err = 'TOKEN the fencing counter is ' .. last .. ', and tokens go from 1 to 9007199254740991: set it to the highest that was given'}
  end
  if spare and (n or 0) + spare < 9007199254740991 then
    local highest = redis.pcall('incrby', counter, spare + 1)
    if type(highest) == 'number' then -- otherwise this user may not, say
      return highest - spare, spare
    end
  end
  return redis.pcall('incr', counter)
end
