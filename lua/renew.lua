-- Extends the expiry of many locks, each only if its owner still holds it.
--
-- KEYS[n]    the locks, all of one cluster slot
-- ARGV[1]    lease in ms, counted from now
-- ARGV[n+1]  owner field of KEYS[n]
--
-- Reply {verdict, ...}  one per lock: 1 extended, 0 the owner does not hold it, -1 refused for now
--
-- A bad key must not affect the others, so each is read with pcall before it is written: a key that cannot be accessed gives -1, and
-- the others are renewed. A key of another type means that the hold is gone. A later expiry stays.

local lease = tonumber(ARGV[1])
local verdicts = {}
for i = 1, #KEYS do
  local held = redis.pcall('hexists', KEYS[i], ARGV[i + 1])
  if held == 1 then
    if redis.call('pttl', KEYS[i]) < lease then
      redis.call('pexpire', KEYS[i], ARGV[1])
    end
    verdicts[i] = 1
  elseif held == 0 or string.find(held.err, 'WRONGTYPE', 1, true) then
    verdicts[i] = 0
  else
    verdicts[i] = -1
  end
end
return verdicts
