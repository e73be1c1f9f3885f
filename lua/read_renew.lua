-- Extends the expiry of many read holds, each only if its owner still holds the lock.
--
-- KEYS[n]     the locks, all of one cluster slot: hashes (see read_acquire.lua)
-- ARGV[2n-1]  owner field of KEYS[n]
-- ARGV[2n]    its lease in ms, counted from now
--
-- Reply {verdict, ...}  one per lock: 1 extended, 0 the owner does not hold it, -1 refused for now
--
-- The hash and the hold keys of all levels are extended together. A missing hold key is set again: while the owner's field exists,
-- nobody else can have had the lock. Redisson sets the expiry of the hash to its own watchdog time; up to 4.3.1 also those of all
-- readers' hold keys.
--
-- A bad key must not affect the others, so each is accessed with pcall. A key of another type means that the hold is gone. A later
-- expiry stays.

local verdicts = {}

-- extend raises the expiry of a key to the lease, and reports whether it did.
local function extend(key, lease)
  local left = redis.pcall('pttl', key)
  if type(left) == 'number' and left < tonumber(lease) then
    left = redis.pcall('pexpire', key, lease)
    if left == 0 then
      left = redis.pcall('set', key, '1', 'px', lease)
    end
  end
  return type(left) == 'number' or left.ok ~= nil
end

for i = 1, #KEYS do
  local owner, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local count = redis.pcall('hget', KEYS[i], owner)
  if type(count) == 'string' then
    verdicts[i] = extend(KEYS[i], lease) and 1 or -1
    for level = 1, tonumber(count) or 0 do
      if not extend(hold_key(KEYS[i], owner, level), lease) then
        verdicts[i] = -1
      end
    end
  elseif not count or string.find(count.err, 'WRONGTYPE', 1, true) then
    verdicts[i] = 0
  else
    verdicts[i] = -1
  end
end
return verdicts
