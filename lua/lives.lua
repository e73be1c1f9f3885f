-- A prelude (see script.go) for scripts that check whether readers live.

-- lives returns how many ms longer a field with that count belongs to a live reader; 0 if it does not. A PTTL of 0 is a key's last
-- millisecond.
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
