-- A prelude (see script.go) for scripts that change the number of free permits, and record the result of a request. A process makes its
-- requests one after the other, with rising numbers, and no longer waits for a reply once it has made the next one.

local function numbers_of(list)
  local numbers = {}
  for n in string.gmatch(list, '%d+') do
    numbers[#numbers + 1] = tonumber(n)
  end
  return numbers
end

-- recalled returns the recorded result of a request that has run: the outcome, the number of permits it took, and three lists as texts: the
-- granted wants, the slots, and what was given back; only 0 if a later request followed. The record is
-- <request>|<permits>|<done>|<wants>|<slots>|<given>, or <request> alone: it gave, or took for a single want, all that it was to. Then slots
-- and given are nil.
local function recalled(line)
  local last, text = string.match(line.record or '', '^(%d+)(.*)$')
  if not last or tonumber(last) < tonumber(line.request) then
    return nil
  elseif last ~= line.request then
    return 0
  elseif text == '' then
    return 1, tonumber(line.asked) or 0, line.asked ~= '' and '1' or ''
  end
  local sum, done, which, slots, given = string.match(text, '^|(%d+)|(-?%d+)|([%d,]*)|([%d,]*)|([%d,]*)$')
  return tonumber(done), tonumber(sum), which, slots, given
end

-- answer returns a script's reply.
local function answer(line, again, more, done, which, slots, given)
  return string.format('%d|%d|%d|%d|', line.free, again, more, done) .. (which or '') .. '|' .. (slots or '') .. '|' .. (given or '')
end

-- write calls a command that a server without memory refuses, unless the script has written before. So it does.
local function write(line, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    redis.call('pexpire', line.recorded or line.requests, '122000')
    return redis.call(...)
  end
  return answer
end

-- add changes the number of free permits, which note writes.
local function add(line, n)
  line.free, line.change, line.more = line.free + n, line.change + n, line.more or n > 0
end

-- change makes a change to the number of free permits, and returns its result.
local function change(line, text)
  local what, n = string.match(text, '^(%a*) ?(-?%d+)$')
  n = tonumber(n)
  if what == 'total' or what == 'set' and not line.exists then -- Redis may have lost the number alone
    local before = line.free
    add(line, n - line.free - (line.held or 0))
    line.creates = not line.exists
    return (line.free ~= before or line.creates) and 1 or 0
  elseif what == 'drain' then
    n = math.max(line.free, 0)
    add(line, -n)
    return n
  elseif what == 'set' or what == 'exists' and not line.exists then
    return 0
  end
  add(line, n)
  return 1
end

-- note writes the request's result into the record, and then the number of free permits. Nothing may fail behind it. If it cannot write
-- the number, it returns the error, and the record is what it was.
local function note(line, done, which, slots, given)
  local text = string.format('%s|%d|%d|', line.request, line.sum, done) .. which .. '|' .. slots .. '|' .. given
  write(line, 'set', line.recorded, text, 'px', '122000')
  if line.change == 0 and not line.creates then
    return nil
  end
  local free = redis.pcall('incrby', line.counter, string.format('%d', line.change))
  if type(free) == 'table' then
    redis.call('set', line.recorded, line.record or '', 'px', '122000')
    return free
  end
  line.free = free
end
