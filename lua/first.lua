-- A prelude (see script.go) for scripts that record a request which does all that it is to do. It goes with record.lua, and is shorter.

-- undo makes the record what it was before.
local function undo(record, before)
  if before or redis.pcall('del', record) ~= 1 then
    redis.call('set', record, before or '', 'px', '122000') -- an empty one says nothing
  end
end

-- first records a request that has not run, and returns true and what the record was. It is read as it is written. Its time to live begins
-- anew once in each second of the process: that is cheaper.
local function first(record, request)
  local before = redis.pcall('set', record, request, 'keepttl', 'get')
  if type(before) == 'table' then
    return false
  end
  local last, now = tonumber(before) or tonumber(string.match(before or '', '^%d*')) or -1, request + 0
  if last >= now then
    undo(record, before)
    return false
  elseif last < now - now % 1000000 then
    redis.call('set', record, request, 'px', '122000')
  end
  return true, before
end
