-- This text stands before the scripts that ask whose a key is (see script.go).

-- owner_of looks at fields of a hash. It returns an error if one is no lock's, otherwise nil, the field of an owner, and 1 if they
-- tell that it is a read/write lock, or else nil. The fields of a lock, of any kind, are its owners (<UUID>:<number>, or
-- <UUID>:<number>:write) and perhaps the mode, which no lock has alone. So two tell, however many there are.
local function owner_of(fields)
  local owner, sides = '', nil
  for _, field in ipairs(fields) do
    local write = string.find(field, ':', 1, true) == 37 and string.match(field, '^[%x-]+:%-?%d+(.*)$')
    if write == '' or write == ':write' then
      owner = field
      sides = write ~= '' and 1 or sides
    elseif field == 'mode' and #fields > 1 then
      sides = 1
    else
      local shown = string.gsub(string.sub(field, 1, 64), '%c', '?')
      return {err = 'FOREIGN the key holds a hash with the field "' .. shown .. '"'}
    end
  end
  return nil, owner, sides
end
