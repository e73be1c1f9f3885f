-- This text stands before the scripts of writers (see script.go).

-- readers returns for how many ms more there is a reader of a lock but that one, and the last of them; 0 if there is none. Dead
-- ones are taken out.
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
