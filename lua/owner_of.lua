-- This text stands before the scripts that ask whose a key is (see script.go).

-- owner_of returns an error if the key holds a hash that is no lock, otherwise nil, the field of an owner, and whether that is
-- the only field: '' if the key is absent, or if only the mode of a read/write lock was seen. The fields of a lock, of any kind,
-- are its owners (<UUID>:<number>, or <UUID>:<number>:write) and perhaps the mode. Two tell, however many there are: one is not
-- the mode.
local function owner_of(key)
  local owner = ''
  local fields = redis.call('hrandfield', key, '2')
  for _, field in ipairs(fields) do
    local id = string.match(field, '^([%x-]+):%-?%d+$') or string.match(field, '^([%x-]+):%-?%d+:write$')
    if id and #id == 36 then
      owner = field
    elseif field ~= 'mode' then
      local shown = string.gsub(string.sub(field, 1, 64), '%c', '?')
      return {err = 'FOREIGN the key holds a hash with the field "' .. shown .. '"'}
    end
  end
  return nil, owner, #fields == 1
end
