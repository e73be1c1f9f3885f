-- This text stands before the scripts that ask whose a key is (see script.go).

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
