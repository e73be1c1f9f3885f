-- A prelude (see script.go) for the scripts of writers.

-- readers returns how many ms longer a lock has readers other than that one, and the last of these; 0 if it has none. It removes dead
-- readers.
local function readers(lock, but)
  local longest, last = 0, ''
  local all = redis.call('hgetall', lock)
  for i = 1, #all, 2 do
    local field = all[i]
    if field ~= 'mode' and field ~= but then
      local left = lives(lock, field, all[i + 1])
      if left == 0 then
        redis.call('hdel', lock, field)
      end
      if left > longest then
        longest, last = left, field
      end
    end
  end
  return longest, last
end
