-- A prelude (see script.go) for scripts that read the number of free permits.

-- free_of returns the number of free permits, and whether there is a counter; an error if the key holds something else. text is the
-- key's value, if the key is known to hold a text.
local function free_of(counter, text)
  text = text or redis.call('get', counter) -- an error if it is of another type, which MGET takes for nothing
  if text and not string.match(text, '^-?%d+$') then
    return nil, nil, {err = 'FOREIGN the key holds a text that is no number of permits'}
  end
  return tonumber(text or 0), text and true
end
