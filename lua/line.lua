-- A prelude (see script.go) for scripts that tell processes in line when to ask for permits. It follows record.lua.

-- A place in line is a client in three keys:
-- queue     a sorted set of clients in order
-- requests  a hash: client = the number of permits that each of its waiters wants, behind a word: a number alone would look like a lock;
--           for one waiter that can have one permit by a message, its id follows
-- ends      a sorted set: when the place ends, in ms on the server's clock, unless the process asks before
-- A process asks half of line.keep before that, by its own timer or after a message; at once if it was told so: then half a ms is added.
-- All else is computed from this in each call.

-- open starts with the line, a table with all that is known of it: one that grows is copied each time, so the scripts begin with most of
-- its fields. It reads each key that may be written, so that one of another type is an error before anything is written. text is
-- <how> <mode> <keep> <wants>, see semaphore.lua.
local function open(line, text)
  local how, mode, keep, wants = string.match(text, '^(%a+) (%d) (%d+) (.*)$')
  line.waits, line.offers, line.cancelled = mode == '1' or mode == '3', mode == '3', mode == '2'
  line.how, line.keep, line.asked = how, tonumber(keep), wants
  line.half = line.keep / 2
  line.client = line.recorded and line.queue and string.sub(line.recorded, #line.requests + 2) or ''
  if line.queue and (line.length > 0 or line.waits) then
    line.now = line.now > 0 and line.now or clock()
    line.mine = line.waits and redis.call('zmscore', line.queue, line.client)[1]
    if line.waits then
      redis.call('hmget', line.requests, line.client)
    end
    line.lost = line.length == 0 and redis.call('zrange', line.ends, '0', '127') -- otherwise serve and arm read it first
  end
  return line
end

-- drop takes a process out of the line.
local function drop(line, client)
  redis.call('hdel', line.requests, client) -- an error if that is of another type
  redis.call('zrem', line.ends, client)
  line.length = line.length - redis.call('zrem', line.queue, client)
end

-- ear_of returns the channel of a client's process: it has the UUID that the client begins with.
local function ear_of(line, client)
  return line.channel .. ':' .. string.match(client, '^[^:]*')
end

-- call_for tells a process to ask in that many ms; its place ends at ends. If it does not listen, it is dropped.
local function call_for(line, client, ms, ends)
  local heard = redis.pcall(line.how, ear_of(line, client), look_message(ms))
  if heard == 0 then
    return drop(line, client)
  elseif type(heard) == 'number' then -- otherwise the user may not publish
    write(line, 'zadd', line.ends, string.format('%d', ends) .. (ms == 0 and '.5' or ''), client)
  end
  return true
end

-- late is how many ms later than necessary a process may ask. It saves messages for times that are close.
local late = 100

-- arm makes sure that somebody in line asks at line.soon: when a place ends whose turn it is, or a permit expires. Processes may be gone,
-- so twice as many ask by line.keep after that, and so on: however many are gone in a row, each costs line.keep at most. A process that
-- joins is one of the many up to twice as many as needed: where processes come and go, seldom anybody has to be told.
local function arm(line)
  local at, need, there = line.soon, 1, 0
  local mine, first = line.waits and #line.rest > 0 and not line.blocks, line.soon < math.huge and string.format('(%d', line.soon)
  while at <= line.now + 60000 and (line.length > 0 or #line.rest > 0) do
    local enough = mine and not line.mine and not line.again and need > 1 and 2 * need or need
    if there < enough then -- otherwise as many ask even earlier
      there = redis.call('zcount', line.ends, first, string.format('%d', at + line.half + late))
      line.again = line.again or mine and there < enough and at - line.now
      there = there + (line.again and 1 or 0)
    end
    if line.joins and line.again then
      return -- as many others ask as before
    end
    if there < need then
      local later = redis.call(
        'zrange', line.ends, '+inf', string.format('(%d', at + line.half + late), 'byscore', 'rev', 'limit', '0', need - there)
      for _, client in ipairs(later) do
        call_for(line, client, math.max(at - line.now, 0), at + line.half)
      end
      if #later < need - there then
        return -- all do
      end
    end
    at, need = line.soon + need * line.keep, 2 * need
  end
end
