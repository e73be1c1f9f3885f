-- This text stands before the scripts that ask whether readers live (see script.go).

-- lives returns for how many ms more a field with that count is a live reader's; 0 if it is none. In its last millisecond a key has 0 left.
local function lives(lock, field, count)
  local longest = 0
  if field ~= 'mode' then
    for level = 1, tonumber(count) or 0 do
      local left = redis.call('pttl', hold_key(lock, field, level))
      longest = math.max(longest, left == 0 and 1 or left)
    end
  end
  return longest
end
