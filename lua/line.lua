-- A prelude (see script.go) for scripts that give permits to processes in line: the queue, and the record of requests.

local function numbers_of(list)
  local numbers = {}
  for n in string.gmatch(list, '%d+') do
    numbers[#numbers + 1] = tonumber(n)
  end
  return numbers
end

-- A place in line is a client in the queue, and the client's field in the hash of places, with four values:
-- told       the time until which permits are kept for the process, which was told to look; 0 if it was not told since it last asked
-- overtaken  the number of later wants granted since its first want was refused; or the time until which permits gather for that want
-- asks       the time at which it asks without a message
-- wants      the number of permits for each of its waiters
-- Times are in ms on the server's clock.
local function place_of(client, text)
  if not text then
    return nil
  end
  local told, overtaken, asks, list = string.match(text, '^(%d+) (%d+) (%d+) ([%d,]+)$')
  return told and {client = client, told = tonumber(told), overtaken = tonumber(overtaken), asks = tonumber(asks), wants = numbers_of(list)}
end

local function place_text(place)
  return string.format('%d %d %d ', place.told, place.overtaken, place.asks) .. table.concat(place.wants, ',')
end

-- open reads the front of the line. If it is not empty, or the calling process may join, open also reads the places, so that a key of
-- another type is an error before anything is written. Otherwise nothing needs the time: line.now may be 0.
local function open(line)
  line.front = line.front or line.queue and redis.call('zrange', line.queue, '0', '1') or {}
  line.watch, line.watchers, line.soon, line.total = 0, 0, math.huge, math.huge
  line.places, line.dropped, line.texts, line.change = {}, 0, {}, 0
  if #line.front > 0 or line.queue and line.waits then
    line.now = line.now or clock()
    line.texts = redis.call('hmget', line.requests, 'watch', line.client, unpack(line.front))
    local watch, watchers = string.match(line.texts[1] or '', '^(%d+) (%d+)$')
    line.watch, line.watchers, line.mine = tonumber(watch or 0), tonumber(watchers or 0), place_of(line.client, line.texts[2])
  end
  line.now = line.now or 0
  return line
end

-- The record of a process is a text with the result of its last request: <request>|<permits>|<done>|<wants>|<slots>|<given>. A process
-- makes its requests one after the other, with rising numbers, and no longer waits for the reply once it has made the next one.

-- recalled returns the recorded result of a request that has run: the outcome, the number of permits it took, the granted wants, and
-- two more lists of numbers. If a later request followed, it returns only 0.
local function recalled(line)
  local last, text = string.match(line.record or '', '^(%d+)|(.*)$')
  if not last or tonumber(last) < tonumber(line.request) then
    return nil
  elseif last ~= line.request then
    return 0
  end
  local sum, done, which, slots, given = string.match(text, '^(%d+)|(-?%d+)|([%d,]*)|([%d,]*)|([%d,]*)$')
  return tonumber(done), tonumber(sum), numbers_of(which), numbers_of(slots), numbers_of(given)
end

-- write calls a command that may need memory. A server without memory refuses it, unless the script has written before, so write makes
-- sure of that.
local function write(line, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    redis.call('pexpire', line.recorded or line.requests, '121000')
    return redis.call(...)
  end
  return answer
end

-- add changes the number of free permits, which note writes.
local function add(line, n)
  line.free, line.change = line.free + n, line.change + n
  line.more = line.more or n > 0
end

-- change makes a change to the number of free permits, and returns its result.
local function change(line, what, n)
  if what == 'drain' then
    local all = math.max(line.free, 0)
    add(line, -all)
    return all
  elseif what == 'set' then
    if line.exists then
      return 0
    end
    line.creates = true
  elseif what == 'exists' and not line.exists then
    return 0
  end
  add(line, n)
  return 1
end

-- most is how often later wants may overtake a want that cannot be granted. After that, permits gather for it for 5 minutes. The time is
-- limited because it may want more than there will ever be, which only line.total, the number of all permits, would show if known.
local most = 16

-- passing returns how many more wants may overtake a waiting want that was overtaken that often.
local function passing(line, overtaken)
  if overtaken < most then
    return most - overtaken
  end
  return overtaken > line.now and 0 or most
end

-- overtake returns the new value of overtaken after that many more times.
local function overtake(line, overtaken, times)
  overtaken = (overtaken < most and overtaken or 0) + times
  return overtaken < most and overtaken or line.now + 300000
end

-- fit returns the wants that can be granted from the free permits, their sum, the remaining wants, how often the first of these was
-- overtaken, and whether it holds others back: a want larger than the number of all permits does not. It grants at most budget wants.
local function fit(line, wants, free, overtaken, budget)
  local which, sum, rest, held_back = {}, 0, {}, false
  for i, want in ipairs(wants) do
    if want <= free - sum and #which < budget and not (held_back and passing(line, overtaken) == 0) then
      which[#which + 1] = i
      sum = sum + want
      overtaken = held_back and overtake(line, overtaken, 1) or 0
    else
      rest[#rest + 1] = want
      held_back = held_back or want <= line.total
    end
  end
  return which, sum, rest, overtaken, held_back
end

-- channel_of returns the channel of a process, whose UUID the client begins with.
local function channel_of(line, client)
  return line.channel .. ':' .. string.match(client, '^[^:]*')
end

-- tell sends a message to a process, and reports whether it listens.
local function tell(line, client, message)
  local heard = redis.pcall(line.how, channel_of(line, client), message)
  return type(heard) == 'number' and heard > 0
end

-- count returns the number of listeners on each of two channels; nil if the server does not report it.
local function count(line, first, second)
  local n = redis.pcall('pubsub', line.how == 'publish' and 'numsub' or 'shardnumsub', first, second)
  return n[2], n[4]
end

-- late is how many ms later than necessary a process in line may look. It saves separate messages for times that are close.
local late = 500

-- The field watch has two numbers: the time of the next looks by processes in line, and how many of them look then. It counts only
-- processes believed to live, and none that was told to look now, because that one may be stopped.

-- unwatch notes that a place ends, or was told to look. The watch may have counted it.
local function unwatch(line, place)
  if place.told == 0 and place.asks <= line.watch + late then
    line.watchers = line.watchers - 1
    if line.watchers < 1 then
      line.watch, line.watchers = 0, 0
    end
  end
end

-- is_watched reports whether a process in line looks at line.soon.
local function is_watched(line)
  return line.watch > line.now and line.watch <= line.soon + late
end

-- drop removes a process from the line.
local function drop(line, place)
  redis.call('zrem', line.queue, place.client)
  redis.call('hdel', line.requests, place.client)
  line.places[place.client] = nil
  line.dropped = line.dropped + 1
  unwatch(line, place)
end

-- places_of returns the places of clients in the queue. A client without its field is told to ask again, and dropped.
local function places_of(line, clients)
  local texts, at = line.texts, 2
  if clients ~= line.front then
    texts, at = #clients > 0 and redis.call('hmget', line.requests, unpack(clients)) or {}, 0
  end
  local places = {}
  for i, client in ipairs(clients) do
    local place = line.places[client] or place_of(client, texts[at + i])
    if not place and not (client == line.client and line.waits) then
      tell(line, client, look_message(0))
      drop(line, {client = client, told = 0, asks = 0})
    else
      places[#places + 1] = place or {client = client}
    end
  end
  return places
end

-- serve goes through the line from its head, as long as there are free permits. At its own place, or at the end if it has none, the
-- calling process gets the permits it wants, as far as they last: line.which, line.sum, line.rest. Other processes with permits
-- available are told to look, once, and the permits are kept for them. A process that does not come in time, or does not listen, is
-- dropped. serve visits about 128 places at most.
local function serve(line)
  local free, budget, ahead = line.free, math.huge, nil
  line.which, line.sum, line.rest, line.overtaken = {}, 0, line.wants, 0
  if line.waits and line.mine and line.wants[1] == line.mine.wants[1] then
    line.overtaken = line.mine.overtaken
  end
  if #line.front == 0 then
    line.which, line.sum, line.rest, line.overtaken = fit(line, line.wants, free, line.overtaken, budget)
    return
  end

  -- passed is called for each place that stays. Grants behind a want that cannot be granted overtake it.
  local function passed(place, granted, overtaken, held_back)
    if ahead then
      budget = budget - granted
    elseif held_back then
      ahead, budget = place, passing(line, overtaken)
      if budget == 0 then
        line.soon = math.min(line.soon, overtaken)
      end
    end
  end

  local function take()
    local held_back = false
    line.which, line.sum, line.rest, line.overtaken, held_back = fit(line, line.wants, free, line.overtaken, budget)
    free = free - line.sum
    if ahead and #line.which > 0 then
      ahead.overtaken = overtake(line, ahead.overtaken, #line.which)
      line.places[ahead.client] = ahead
    end
    passed({}, #line.which, line.overtaken, held_back)
  end

  local function visit(place)
    if place.told > 0 and place.told <= line.now then
      return drop(line, place)
    end
    local which, sum, _, overtaken, held_back = fit(line, place.wants, free, place.overtaken, budget)
    if sum == 0 then
      if count(line, channel_of(line, place.client), line.channel) == 0 then
        return drop(line, place)
      end
    elseif place.told == 0 then
      if not tell(line, place.client, look_message(0)) then
        return drop(line, place)
      end
      unwatch(line, place)
      place.told = line.now + line.keep
      line.places[place.client] = place
    end
    if sum > 0 then
      line.soon = math.min(line.soon, place.told)
    end
    free = free - sum
    passed(place, #which, overtaken, held_back)
  end

  local took, clients, at, size = false, line.front, 0, 2
  while #clients > 0 and at < 128 and free > 0 and budget > 0 do
    local before = line.dropped
    for _, place in ipairs(places_of(line, clients)) do
      if free > 0 and budget > 0 then
        if line.waits and place.client == line.client then
          took = true
          take()
        else
          visit(place)
        end
      end
    end
    at = at + #clients - line.dropped + before
    local more = #clients == size and free > 0 and budget > 0
    clients = more and redis.call('zrange', line.queue, at, at + 31) or {}
    size = 32
  end
  if not took and at < 128 and free > 0 and budget > 0 then
    take()
  end
end

-- arm makes sure that a process in line looks at line.soon: when kept permits were not taken, or when a permit expires. The last two in
-- line, which will stay for long, get a message with that time, unless they ask by then anyway.
local function arm(line)
  if is_watched(line) or #line.front == 0 or line.soon > line.now + 60000 then -- all ask within a minute
    return
  end
  local last = places_of(line, redis.call('zrange', line.queue, '-4', '-1'))
  local watchers = 0
  for i = #last, 1, -1 do
    local place = last[i]
    if watchers < 2 and place.told == 0 then
      if place.asks <= line.now or place.asks > line.soon + late then
        if tell(line, place.client, look_message(math.max(line.soon - line.now, 0))) then
          place.asks = math.max(line.soon, line.now)
          line.places[place.client] = place
          watchers = watchers + 1
        else
          drop(line, place)
        end
      else
        watchers = watchers + 1
      end
    end
  end
  if watchers > 0 then
    line.watch, line.watchers = line.soon, watchers
  end
end

-- stand gives the calling process its place in line, or ends it, and returns the ms until its next try: -1 if everything was granted.
-- within is the number of ms after which permits may come back without a message.
local function stand(line, within)
  local again = #line.rest > 0 and math.max(math.min(60000, within), 1) or -1
  if not line.queue or not line.waits then
    return again
  end
  local mine = line.mine
  if #line.rest == 0 then
    if mine then
      drop(line, mine)
    end
    return again
  end
  if mine then
    unwatch(line, mine)
    if #line.which > 0 and mine.asks > line.now then
      again = math.min(again, mine.asks - line.now) -- others may rely on that
    end
  end
  if line.soon < line.now + again and not is_watched(line) then
    again = math.max(line.soon - line.now, 1)
  elseif line.watchers < 2 and line.watch > line.now and line.watch <= line.now + line.keep + late then
    again = math.min(again, line.watch - line.now) -- so that nobody need be told to when those who watch have left
  end
  local asks = line.now + again
  if line.watch <= line.now or asks < line.watch - late then
    line.watch, line.watchers = asks, 1
  elseif asks <= line.watch + late then
    line.watchers = line.watchers + 1
  end
  line.places[line.client] = {client = line.client, told = 0, overtaken = line.overtaken, asks = asks, wants = line.rest}
  local keeps = mine and line.which[1] ~= 1
  local tail = redis.call('zrange', line.queue, '-1', '-1', 'withscores')[2]
  write(line, 'zadd', line.queue, keeps and 'nx' or 'ch', (tail or 0) + 1, line.client)
  if type(redis.pcall('pexpire', line.queue, '61000')) ~= 'number' then -- the queue may have no expiry yet
    redis.call('zrem', line.queue, line.client)
    redis.call('pexpire', line.queue, '61000')
  end
  line.stands = true
  return again
end

-- note writes the request's result into the record, and then the number of free permits. Nothing may fail behind it. If it cannot write
-- the number, it returns the error, and the record is what it was.
local function note(line, done, slots, given)
  local lists = table.concat(line.which, ',') .. '|' .. (slots and table.concat(slots, ',') or '') .. '|' .. (given and table.concat(given, ',') or '')
  write(line, 'set', line.recorded, string.format('%s|%d|%d|', line.request, line.sum, done) .. lists, 'px', '121000')
  if line.change == 0 and not line.creates then
    return nil
  end
  local free = redis.pcall('incrby', line.counter, line.change)
  if type(free) == 'table' then
    redis.call('set', line.recorded, line.record or '', 'px', '121000')
    return free
  end
  line.free = free
end

-- settle saves the places in line and the watch.
local function settle(line)
  arm(line)
  local fields = {}
  for client, place in pairs(line.places) do
    fields[#fields + 1] = client
    fields[#fields + 1] = place_text(place)
  end
  local watch = string.format('%d %d', line.watch, line.watchers)
  if watch ~= (line.texts[1] or '0 0') then
    fields[#fields + 1] = 'watch'
    fields[#fields + 1] = watch
  end
  if #fields > 0 and write(line, 'hset', line.requests, unpack(fields)) > 0 or line.stands then -- or they end when those do that are there
    redis.call('pexpire', line.requests, '61000')
  end
end

-- announce notifies outsiders, which listen to the channel alone, of returned permits by '0' and their number: Redisson reads the number,
-- and processes in line ignore it. Without a queue, all processes are notified. So are they if there was neither a counter nor anybody in
-- line, because Redis may have lost both.
local function announce(line)
  if line.more and line.free > 0 then
    local free = string.format('%d', line.free)
    local all, inside = nil, nil
    if line.queue and (line.exists or #line.front > 0) then
      all, inside = count(line, line.channel, line.channel .. ':rlock_queue')
      free = '0' .. free
    end
    if not all or all > inside then
      redis.pcall(line.how, line.channel, free)
    end
  end
end
