-- This text stands before the scripts that read how many permits are free (see script.go).

-- free_of returns how many permits are free, and whether there is a counter; or an error, if it holds something else. text is what it holds, if
-- that is known to be a text.
local function free_of(counter, text)
  text = text or redis.call('get', counter) -- an error if it is of another type, which MGET takes for nothing
  if text and not string.match(text, '^-?%d+$') then
    return nil, nil, {err = 'FOREIGN the key holds a text that is no number of permits'}
  end
  return tonumber(text or 0), text and true
end
