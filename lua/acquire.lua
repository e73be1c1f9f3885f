-- Takes a lock for an owner, or brings its re-entry count up to what the owner expects.
--
-- KEYS[1]  the lock: a hash, field = owner, value = count
-- KEYS[2]  optional: the fencing counter, raised by every acquire that counts
-- ARGV[1]  owner field
-- ARGV[2]  lease in ms
-- ARGV[3]  the count that the owner has once this call succeeded; 1 for a first acquire
--
-- Reply token          held by the owner, ARGV[3] deep; a number from 0 on, and 0 without KEYS[2]
-- Reply {ttl, holder}  held by another for ttl more ms (-1: without expiry); holder is a field of theirs, or ''
-- Reply -1             a re-entry, but the hold to re-enter is gone
-- Error FOREIGN        the key holds a hash that is no lock: nothing was changed
--
-- A repeat of a call whose reply was lost finds the count already there and changes nothing but
-- the expiry. The count never falls here, and a re-entry never shortens the expiry.
--
-- Redis does not roll back a script that fails. So whatever can fail comes before the hold is written: the first
-- access to each key, the counter, and a field that is no number. If a key cannot be accessed, nothing was written.

-- owner_of returns an error if the key holds a hash that is no lock, otherwise nil and the field of an owner: '' if the key
-- is absent, or if only the mode of a read/write lock was seen. The fields of a lock, of any kind, are its owners
-- (<UUID>:<number>, or <UUID>:<number>:write) and perhaps the mode. Two tell, however many there are: one is not the mode.
local function owner_of(key)
  local owner = ''
  for _, field in ipairs(redis.call('hrandfield', key, 2)) do
    local id = string.match(field, '^([%x-]+):%-?%d+$') or string.match(field, '^([%x-]+):%-?%d+:write$')
    if id and #id == 36 then
      owner = field
    elseif field ~= 'mode' then
      local shown = string.gsub(string.sub(field, 1, 64), '%c', '?')
      return {err = 'FOREIGN the key holds a hash with the field "' .. shown .. '"'}
    end
  end
  return nil, owner
end

local want = tonumber(ARGV[3])
local ttl = redis.call('pttl', KEYS[1])
local held = ttl ~= -2 and redis.call('hget', KEYS[1], ARGV[1]) -- false: absent, or of another

if not held then
  if want > 1 then
    return -1
  end
  if ttl ~= -2 then
    local foreign, holder = owner_of(KEYS[1])
    return foreign or {ttl, holder}
  end
end

local count = tonumber(held or 0)
local token = 0
if count < want then
  if KEYS[2] then
    token = redis.call('incr', KEYS[2])
  end
  redis.call('hincrby', KEYS[1], ARGV[1], want - count)
elseif KEYS[2] then
  token = tonumber(redis.call('get', KEYS[2]) or 0)
end

if not held then
  local failed = redis.pcall('pexpire', KEYS[1], ARGV[2])
  if failed ~= 1 then -- a hold without expiry could last for ever
    redis.call('del', KEYS[1])
    return failed
  end
elseif ttl < tonumber(ARGV[2]) then
  redis.call('pexpire', KEYS[1], ARGV[2])
end
return token
