-- This text stands before the scripts that ask whether readers live (see script.go).

-- lives returns for how many ms more a field with that count is a live reader's; 0 if it is none.
local function lives(lock, field, count)
  local longest = 0
  if field ~= 'mode' then
    for level = 1, tonumber(count) or 0 do
      longest = math.max(longest, redis.call('pttl', hold_key(lock, field, level)))
    end
  end
  return longest
end
