-- A prelude (see script.go) for scripts that check the owner of a key.

-- owner_of checks fields of a hash. It returns an error if one cannot belong to a lock; otherwise nil, an owner's field, and 1 if the
-- fields show a read/write lock, else nil. The fields of a lock, of any kind, are its owners (<UUID>:<number> or
-- <UUID>:<number>:write) and perhaps the mode, which is never alone. So any two fields are enough.
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
