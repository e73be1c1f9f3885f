-- A prelude (see script.go) for scripts that issue fencing tokens.

-- raise increments a fencing counter, and returns the new value as the token. If spare tokens are requested and available, it also
-- returns how many of the next numbers belong to the caller. A counter that gives no token is an error, and stays unchanged: 0 means no
-- token, and above 2^53 numbers in scripts are not exact, so tokens would repeat.
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
