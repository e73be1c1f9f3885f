-- This text stands before the scripts that ask whose a key is (see script.go).

-- owner_of looks at fields of a hash. It returns an error if one is no lock's, otherwise nil and the field of an owner: '' if
-- there is none but the mode of a read/write lock. The fields of a lock, of any kind, are its owners (<UUID>:<number>, or
-- <UUID>:<number>:write) and perhaps the mode. Two tell, however many there are: one is not the mode.
local function owner_of(fields)
  local owner = ''
  for _, field in ipairs(fields) do
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
