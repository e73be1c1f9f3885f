-- A prelude (see script.go) for scripts that give permits to processes in line: first come, first served. It follows record.lua.

-- A place in line is a client in three keys:
-- queue     a sorted set of clients in order
-- requests  a hash: client = the number of permits that each of its waiters wants, behind a word: a number alone would look like a lock
-- ends      a sorted set: when the place ends, in ms on the server's clock, unless the process asks before
-- A process asks half of line.keep before that, by its own timer or after a message; at once if it was told so: then half a ms is added.
-- All else is computed from this in each call.

-- open starts with the line. It reads each key that may be written, so that one of another type is an error before anything is written.
-- text is <mode> <how> <keep> <channel>, see semaphore.lua.
local function open(line, text)
  local mode, how, keep, channel = string.match(text, '^(%d) (%a+) (%d+) (.*)$')
  line.waits, line.cancelled, line.how, line.keep, line.channel = mode == '1', mode == '2', how, tonumber(keep), channel
  line.client = line.recorded and line.queue and string.sub(line.recorded, #line.requests + 2) or ''
  line.change, line.soon, line.half, line.length, line.sum = 0, math.huge, line.keep / 2, line.length or 0, 0
  line.wants, line.which, line.rest = {}, {}, {}
  if line.queue and (line.length > 0 or line.waits) then
    line.now = line.now or clock()
    line.mine = redis.call('zmscore', line.queue, line.client)[1] and line.waits
    redis.call('hmget', line.requests, line.client)
    if line.length == 0 then -- otherwise serve and arm read it first
      redis.call('zmscore', line.ends, line.client)
    end
  end
  line.now, line.total = line.now or 0, math.huge
  return line
end

local function drop(line, client)
  line.length = line.length - redis.call('zrem', line.queue, client)
  redis.call('zrem', line.ends, client)
  redis.call('hdel', line.requests, client)
end

-- call_for tells a process to ask in that many ms; its place ends at ends. If it does not listen, it is dropped. Its channel has the UUID
-- that the client begins with.
local function call_for(line, client, ms, ends)
  local heard = redis.pcall(line.how, line.channel .. ':' .. string.match(client, '^[^:]*'), look_message(ms))
  if heard == 0 then
    return drop(line, client)
  elseif type(heard) ~= 'number' then
    return true -- the user may not publish
  end
  write(line, 'zadd', line.ends, string.format('%.0f', ends) .. (ms == 0 and '.5' or ''), client)
  return true
end

-- late is how many ms later than necessary a process may ask. It saves messages for times that are close.
local late = 100

-- fit returns which wants can be granted from the free permits, in order, their sum, and whether the first that cannot keeps others from
-- being served: not if it is larger than the number of all permits, as far as that is known.
local function fit(line, wants, free)
  local which, sum, stops = {}, 0, false
  for i, want in ipairs(wants) do
    if not stops and want <= free - sum then
      which[#which + 1], sum = i, sum + want
    else
      stops = stops or want <= line.total
    end
  end
  return which, sum, stops and #which == 0
end

-- serve drops the places that have ended, and goes through the line from its head, while permits are free. The calling process gets them at
-- its place, or behind all. Others are told to ask, and the permits are theirs until then. Nobody gets any behind a want that cannot be
-- granted; its process has to show that it lives.
local function serve(line)
  local free, at, stops = line.free, 0, false
  line.rest = line.wants
  local function take()
    local which, sum, blocks = fit(line, line.wants, free)
    line.which, line.sum, line.rest, free = which, sum, {}, free - sum
    for i, want in ipairs(line.wants) do
      if which[i - #line.rest] ~= i then
        line.rest[#line.rest + 1] = want
      end
    end
    return blocks
  end
  local function visit(client, wants, ends)
    local which, sum, blocks = fit(line, wants, free)
    local turn = #which > 0 or #wants == 0
    if not turn and (not blocks or at + 1 >= line.length and #line.wants == 0) then
      return blocks -- it is in nobody's way
    end
    ends = tonumber(ends or line.now + 1000000)
    if ends % 1 == 0 and ends > line.now + (turn and line.half or line.keep + late) then
      ends = line.now + line.keep
      if not call_for(line, client, turn and 0 or line.half, ends) then
        at = at - 1
        return false
      end
    end
    line.soon, free = math.min(line.soon, math.floor(ends) + 1), free - sum
    return blocks
  end
  if line.length > 0 then
    for _, client in ipairs(redis.call('zrange', line.ends, '-inf', line.now, 'byscore', 'limit', '0', '128')) do
      if not (line.waits and client == line.client) then
        drop(line, client)
      end
    end
  end
  while at < line.length and at < 128 and free > 0 and not stops do
    local clients = redis.call('zrange', line.queue, at, at + math.min(free, 15))
    local lists, ends = redis.call('hmget', line.requests, unpack(clients)), redis.call('zmscore', line.ends, unpack(clients))
    for i, client in ipairs(clients) do
      if free > 0 and not stops then
        if line.waits and client == line.client then
          stops = take()
          line.blocks = stops and line.length > 1
          line.soon = line.blocks and math.min(line.soon, line.now + line.keep + 1) or line.soon
        else
          stops = visit(client, numbers_of(lists[i] or ''), ends[i])
        end
        at = at + 1
      end
    end
  end
  if not line.mine and at < 128 and free > 0 and not stops then
    take()
  end
end

-- arm makes sure that somebody in line asks at line.soon: when a place ends whose turn it is, or a permit expires. Processes may be gone,
-- so twice as many ask by line.keep after that, and so on: however many are gone in a row, each costs line.keep at most.
local function arm(line)
  local at, need, there = line.soon, 1, 0
  local mine = line.waits and #line.rest > 0 and not line.blocks
  while at <= line.now + 60000 and (line.length > 0 or #line.rest > 0) do
    if there < need then -- otherwise enough of them ask even earlier
      there = redis.call('zcount', line.ends, string.format('(%.0f', line.soon), string.format('%.0f', at + line.half + late))
      if there < need and mine and not line.again then
        line.again = at - line.now
      end
      there = there + (line.again and 1 or 0)
    end
    if there < need then
      local later = redis.call(
        'zrange', line.ends, '+inf', string.format('(%.0f', at + line.half + late), 'byscore', 'rev', 'limit', '0', need - there)
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

-- keep writes into a key of the line, and when that expires.
local function keep(line, key, undo, command, ...)
  write(line, command, key, ...)
  if type(redis.pcall('pexpire', key, string.format('%.0f', 60000 + line.keep))) ~= 'number' then -- it may have no expiry yet
    redis.call(undo, key, line.client)
    redis.call('pexpire', key, '1')
  end
end

-- stand gives the calling process its place, or ends it, and returns the ms until its next try: -1 if everything was granted.
local function stand(line)
  if line.queue and line.mine then
    redis.call('zrem', line.ends, line.client)
  end
  if line.queue then
    arm(line)
  end
  if #line.rest == 0 then
    if line.mine then
      drop(line, line.client)
    end
    return -1
  end
  local stays = line.queue and line.waits
  local again = line.blocks and line.half or line.again or stays and 60000 or line.soon - line.now
  again = math.max(math.min(again, 60000), 1)
  if not stays then
    return again
  end
  local tail = redis.call('zrange', line.queue, '-1', '-1', 'withscores')[2]
  keep(line, line.requests, 'hdel', 'hset', line.client, 'want ' .. table.concat(line.rest, ','))
  keep(line, line.ends, 'zrem', 'zadd', string.format('%.0f', line.now + again + line.half), line.client)
  keep(line, line.queue, 'zrem', 'zadd', line.mine and line.which[1] ~= 1 and 'nx' or 'ch', (tail or 0) + 1, line.client)
  return again
end
