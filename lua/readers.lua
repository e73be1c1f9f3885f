-- A prelude (see script.go) for the scripts of writers.

-- readers returns how many ms longer a lock has readers other than that one; 0 if it has none. Then come the time and field of the one
-- that ends first, a second from now at the earliest; if all end before that, of the last. It removes dead readers.
--
-- Other libraries write readers without hold keys, which look like dead ones. So if none of a lock's readers has one, all have until the
-- hash expires, as for Redisson's writers. That is no later than the last reader's lease: see read_release.lua.
local function readers(lock, but)
  local longest, soonest, next, last = 0, math.huge, '', ''
  local all = redis.call('hgetall', lock)
  local dead = {}
  for i = 1, #all, 2 do
    local field = all[i]
    if field ~= 'mode' and field ~= but then
      local left = lives(lock, field, all[i + 1])
      if left == 0 then
        dead[#dead + 1] = field
      end
      if left > longest then
        longest, last = left, field
      end
      if left >= 1000 and left < soonest then
        soonest, next = left, field
      end
    end
  end
  local rest = longest == 0 and but == '' and dead[1] and redis.call('pttl', lock) or 0
  if rest > 0 then
    return rest, rest, dead[1]
  end
  for _, field in ipairs(dead) do
    redis.call('hdel', lock, field)
  end
  if longest < 1000 then
    soonest, next = longest, last
  end
  return longest, soonest, next
end
