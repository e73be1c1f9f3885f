-- A prelude (see script.go) for scripts that take a lock only from owners that were seen.

-- only reports whether all of some fields are those of owners, who may be writers. The fields are each step'th of a list; the owners are the
-- arguments from first on, or if that is nil, all that there are.
local function only(fields, step, first)
  if not first then
    return true
  end
  local seen = {mode = step == 2}
  for i = first, #ARGV do
    seen[ARGV[i]], seen[ARGV[i] .. ':write'] = true, true
  end
  for i = 1, #fields, step do
    if not seen[fields[i]] then
      return false
    end
  end
  return true
end
