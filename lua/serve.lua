-- A prelude (see script.go) for scripts that give permits to the processes in line: first come, first served. It follows line.lua.

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
  local ended = line.length > 0 and redis.call('zrange', line.ends, '-inf', string.format('%d', line.now), 'byscore', 'limit', '0', '128') or {}
  for _, client in ipairs(ended) do
    if not line.waits or client ~= line.client then
      drop(line, client)
    end
  end
  if line.waits and not line.mine and #ended == 0 and not line.more and not line.grant and free > 0 and line.length > free then
    -- Each of those before the last wants one permit at least. One of them asks soon, as after each call that left permits free, so nothing has
    -- changed for them: who joins gets none, but may be asked to look. If none does, another library has given permits back.
    local first = redis.call('zrange', line.ends, '0', '0', 'withscores')[2]
    if first and tonumber(first) <= line.now + line.keep + late then
      line.soon, line.joins = math.floor(tonumber(first)) + 1, true
      return
    end
  end
  while at < line.length and at < 128 and free > 0 and not stops do
    local clients = redis.call('zrange', line.queue, at, at + math.min(free, 16) - 1)
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
        local text, till = requests[i] or '', tonumber(ends[i] or line.now + 1000000)
        local sum, turn, blocks = 1, true, false
        if text ~= 'want 1' and string.sub(text, 1, 7) ~= 'want 1 ' then -- most are for one permit, which is free
          local wants = numbers_of(string.match(text, '^%a+ ([%d,]*)') or '')
          local which, _, total, stuck = fit(line, wants, free)
          turn, sum, blocks = #which > 0 or #wants == 0, total, stuck
        end
        if sum > 0 and line.grant and line.grant(line, client, text, till) then
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
