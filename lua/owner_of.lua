-- A prelude (see script.go) for scripts that check the owner of a key.

-- owner_of checks fields of a hash. It returns an error if one cannot belong to a lock; otherwise nil, an owner's field, and 1 if the
-- fields show a read/write lock, else nil. The fields of a lock, of any kind, are its owners (<UUID>:<number> or
-- <UUID>:<number>:write) and perhaps the mode, which is never alone. So any two fields are enough.
--
-- Other libraries write other owners into Redisson's plain lock. So a single field of any form is an owner, too, if its value is a count
-- and the key expires. lock is the key if a single field of fields is all of the hash, otherwise missing.
local function owner_of(fields, lock)
  local owner, sides = '', nil
  for _, field in ipairs(fields) do
    local write = string.find(field, ':', 1, true) == 37 and string.match(field, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+(.*)$')
    if write == '' or write == ':write' then
      owner = field
      sides = write ~= '' and 1 or sides
    elseif field == 'mode' and #fields > 1 then
      sides = 1
    else
      local count = lock and field ~= '' and field ~= 'mode' and #fields == 1 and redis.call('hget', lock, field)
      -- A longer number is a time, or an id: nobody re-enters so often.
      if count and #count < 10 and string.match(count, '^[1-9]%d*$') and redis.call('pttl', lock) >= 0 then
        return nil, field, nil
      end
      local shown = string.gsub(string.sub(field, 1, 64), '%c', '?')
      return {err = 'FOREIGN the key holds a hash with the field "' .. shown .. '"'}
    end
  end
  return nil, owner, sides
end
