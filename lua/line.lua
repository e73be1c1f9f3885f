-- A prelude (see script.go) for scripts that give permits to processes in line: first come, first served. It follows record.lua.

-- A place in line is a client in three keys:
-- queue     a sorted set of clients in order
-- requests  a hash: client = the number of permits that each of its waiters wants, behind a word: a number alone would look like a lock;
--           for one waiter that can have one permit by a message, its id follows
-- ends      a sorted set: when the place ends, in ms on the server's clock, unless the process asks before
-- A process asks half of line.keep before that, by its own timer or after a message; at once if it was told so: then half a ms is added.
-- All else is computed from this in each call.

-- open starts with the line. It reads each key that may be written, so that one of another type is an error before anything is written.
-- text is <mode> <how> <keep> <channel>, see semaphore.lua.
local function open(line, text)
  local mode, how, keep, channel = string.match(text, '^(%d) (%a+) (%d+) (.*)$')
  line.waits, line.offers, line.cancelled = mode == '1' or mode == '3', mode == '3', mode == '2'
  line.how, line.keep, line.channel = how, tonumber(keep), channel
  line.client = line.recorded and line.queue and string.sub(line.recorded, #line.requests + 2) or ''
  line.change, line.soon, line.half, line.length, line.sum = 0, math.huge, line.keep / 2, line.length or 0, 0
  line.wants, line.which, line.rest = {}, {}, {}
  if line.queue and (line.length > 0 or line.waits) then
    line.now = line.now or clock()
    line.mine = line.waits and redis.call('zmscore', line.queue, line.client)[1]
    line.offered = string.match(redis.call('hmget', line.requests, line.client)[1] or '', '^want 1 (.+)$')
    line.lost = line.length == 0 and redis.call('zrange', line.ends, '0', '127') -- otherwise serve and arm read it first
  end
  line.now, line.total = line.now or 0, math.huge
  return line
end

-- drop takes a process out of the line.
local function drop(line, client)
  line.length = line.length - redis.call('zrem', line.queue, client)
  redis.call('zrem', line.ends, client)
  redis.call('hdel', line.requests, client)
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

-- fit returns which wants can be granted from the free permits, in order, the others, the sum, and whether the first that cannot keeps others
-- from being served: not if it is larger than the number of all permits, as far as that is known.
local function fit(line, wants, free)
  local which, rest, sum, stops = {}, {}, 0, false
  for i, want in ipairs(wants) do
    if not stops and want <= free - sum then
      which[#which + 1], sum = i, sum + want
    else
      rest[#rest + 1], stops = want, stops or want <= line.total
    end
  end
  return which, rest, sum, stops and #which == 0
end

-- serve drops the places that have ended, and goes through the line from its head, while permits are free. The calling process gets them at
-- its place, or behind all. Others are told to ask, and the permits are theirs until then. Nobody gets any behind a want that cannot be
-- granted; its process has to show that it lives, unless it is in nobody's way.
local function serve(line)
  local free, at, stops = line.free, 0, false
  line.rest = line.wants
  local function take()
    line.which, line.rest, line.sum, stops = fit(line, line.wants, free)
    free = free - line.sum
  end
  for _, client in ipairs(line.lost or {}) do -- Redis has lost the queue alone
    if client ~= line.client then
      call_for(line, client, 0, line.now + line.keep)
    end
  end
  for _, client in ipairs(line.length > 0 and redis.call('zrange', line.ends, '-inf', string.format('%d', line.now), 'byscore', 'limit', '0', '128') or {}) do
    if not line.waits or client ~= line.client then
      drop(line, client)
    end
  end
  while at < line.length and at < 128 and free > 0 and not stops do
    local clients = redis.call('zrange', line.queue, at, at + math.min(free, 15))
    local requests, ends = redis.call('hmget', line.requests, unpack(clients)), redis.call('zmscore', line.ends, unpack(clients))
    for i, client in ipairs(clients) do
      if free <= 0 or stops then
        break
      end
      at = at + 1
      if line.waits and client == line.client then
        take()
        line.blocks = stops and line.length > 1
        line.soon = line.blocks and math.min(line.soon, line.now + line.keep + 1) or line.soon
      else
        local list, id = string.match(requests[i] or '', '^%a+ ([%d,]*) ?(.*)$')
        local wants = numbers_of(list or '')
        local which, _, sum, blocks = fit(line, wants, free)
        local turn, till = #which > 0 or #wants == 0, tonumber(ends[i] or line.now + 1000000)
        if which[1] and line.grant and line.grant(line, client, requests[i], id, till) then
          at, free = at - 1, free - 1
        elseif turn or blocks and (at < line.length or #line.wants > 0) then
          local asks = till % 1 ~= 0 or till <= line.now + (turn and line.half or line.keep + late)
          till = asks and till or line.now + line.keep
          if asks or call_for(line, client, turn and 0 or line.half, till) then
            line.soon, free, stops = math.min(line.soon, math.floor(till) + 1), free - sum, blocks
          else
            at = at - 1
          end
        end
      end
    end
  end
  if not line.mine and at < 128 and free > 0 and not stops then
    take()
  end
end

-- arm makes sure that somebody in line asks at line.soon: when a place ends whose turn it is, or a permit expires. Processes may be gone,
-- so twice as many ask by line.keep after that, and so on: however many are gone in a row, each costs line.keep at most. A process that
-- joins is one of the many up to twice as many as needed: where processes come and go, seldom anybody has to be told.
local function arm(line)
  local at, need, there = line.soon, 1, 0
  local mine = line.waits and #line.rest > 0 and not line.blocks
  while at <= line.now + 60000 and (line.length > 0 or #line.rest > 0) do
    local enough = mine and not line.mine and not line.again and need > 1 and 2 * need or need
    if there < enough then -- otherwise as many ask even earlier
      there = redis.call('zcount', line.ends, string.format('(%d', line.soon), string.format('%d', at + line.half + late))
      line.again = line.again or mine and there < enough and at - line.now
      there = there + (line.again and 1 or 0)
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

-- keep writes into a key of the line, and when that expires: first, so that one who may not leaves nothing behind.
local function keep(line, key, command, ...)
  local ms = string.format('%d', 60000 + line.keep)
  local was = redis.call('pexpire', key, ms)
  write(line, command, key, ...)
  if was == 0 then
    redis.call('pexpire', key, ms)
  end
end

-- stand gives the calling process its place, or ends it, and returns the ms until its next try: -1 if everything was granted.
local function stand(line)
  if line.mine and #line.rest == 0 then
    drop(line, line.client)
  elseif line.mine then
    redis.call('zrem', line.ends, line.client)
  end
  if line.queue then
    arm(line)
  end
  if #line.rest == 0 then
    return -1
  end
  local stays = line.queue and line.waits
  local again = math.max(1, math.min(60000, line.blocks and line.half or line.again or stays and 60000 or line.soon - line.now))
  if stays then
    local tail = redis.call('zrange', line.queue, '-1', '-1', 'withscores')[2]
    keep(line, line.requests, 'hset', line.client, 'want ' .. table.concat(line.rest, ',') .. (line.offers and ' ' .. line.id or ''))
    keep(line, line.ends, 'zadd', string.format('%d', line.now + again + line.half), line.client)
    keep(line, line.queue, 'zadd', line.mine and line.which[1] ~= 1 and 'nx' or 'ch', string.format('%d', (tail or 0) + 1), line.client)
  end
  return again
end
