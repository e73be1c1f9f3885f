-- This text stands before the scripts that give permits to processes in line (see script.go): the queue, and the record of requests.

local function numbers_of(list)
  local numbers = {}
  for n in string.gmatch(list, '%d+') do
    numbers[#numbers + 1] = tonumber(n)
  end
  return numbers
end

-- A place in line is a member of the queue, which is a client, and a field of that name beside it, with four things:
-- told       until when permits are kept for the process, which was told to look; 0 if it has not been told since it asked
-- overtaken  how many wants that came after its first one have been granted since that could not be; or until when permits gather for it
-- asks       when it asks if it hears nothing
-- wants      how many permits each of its waiters wants
-- The times are the server's, in ms.
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

-- open reads who is first in line. If there is somebody, or the process that calls may join, it reads their places, too, so that a key of
-- another type is an error before anything is written. Otherwise nobody asks for the time: line.now may be 0.
local function open(line)
  line.front = line.front or line.queue and redis.call('zrange', line.queue, '0', '1') or {}
  line.watch, line.watchers, line.soon, line.total = 0, 0, math.huge, math.huge
  line.places, line.dropped, line.texts = {}, 0, {}
  if #line.front > 0 or line.queue and line.waits then
    line.now = line.now or clock()
    line.texts = redis.call('hmget', line.requests, 'watch', line.client, unpack(line.front))
    local watch, watchers = string.match(line.texts[1] or '', '^(%d+) (%d+)$')
    line.watch, line.watchers, line.mine = tonumber(watch or 0), tonumber(watchers or 0), place_of(line.client, line.texts[2])
  end
  line.now = line.now or 0
  return line
end

-- The record of a process is a text: <request>|<permits>|<done>|<wants>|<slots>|<given>, what came of its last request. It makes one after
-- the other, each with a higher number, and nobody waits for the answer to one that another has followed.

-- recalled returns what the record says of a request that has run: what came of it, how many permits it took, for which of the wants, and two more
-- lists of numbers. Of one that another has followed it returns 0 alone.
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

-- write calls a command that may need memory. A server that has none left refuses it, unless the script has written before: so that is done.
local function write(line, ...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then
    redis.call('pexpire', line.recorded, '121000')
    return redis.call(...)
  end
  return answer
end

local function add(line, n)
  if n ~= 0 then
    line.free = write(line, 'incrby', line.counter, n)
    line.more = line.more or n > 0
  end
end

-- change makes a change to the number of free permits, and returns what came of it.
local function change(line, what, n)
  if what == 'drain' then
    local all = math.max(line.free, 0)
    add(line, -all)
    return all
  elseif what == 'set' then
    if line.exists then
      return 0
    end
    write(line, 'set', line.counter, n)
    line.free, line.more = n, true
    return 1
  elseif what == 'exists' and not line.exists then
    return 0
  end
  add(line, n)
  return 1
end

-- most is how often a want that cannot be granted is overtaken by later ones that can. Then permits gather for it, for 5 minutes: it may want more
-- than there ever will be, which nobody knows unless the number of all permits is known: line.total.
local most = 16

-- passing returns how many wants may overtake one that cannot be granted, and has been overtaken so often.
local function passing(line, overtaken)
  if overtaken < most then
    return most - overtaken
  end
  return overtaken > line.now and 0 or most
end

-- overtake returns how often a want has been overtaken, when it is so many times more.
local function overtake(line, overtaken, times)
  overtaken = (overtaken < most and overtaken or 0) + times
  return overtaken < most and overtaken or line.now + 300000
end

-- fit returns which of the wants can be granted with so many permits, how many that takes, the wants that are left, how often the first of
-- them has been overtaken, and whether there is such a one: a want beyond all permits keeps nobody back. No more wants are granted than the
-- budget is.
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

-- tell sends a message to a process, and reports whether it listens.
local function tell(line, client, message)
  local heard = redis.pcall(line.how, line.channel .. ':' .. client, message)
  return type(heard) == 'number' and heard > 0
end

-- count returns how many listen to each of two channels; nil if the server does not say so.
local function count(line, first, second)
  local n = redis.pcall('pubsub', line.how == 'publish' and 'numsub' or 'shardnumsub', first, second)
  return n[2], n[4]
end

-- late is how much later than necessary, in ms, those in line may look, so that not each of them is told a time of its own.
local late = 500

-- The field watch has two numbers: when the next of those in line look, and how many of them. Each of these lives, as far as is known, and has not been
-- told to look now, for such a process may be stopped itself.

-- unwatch notes that a place ends, or is told to look. It may be counted among them.
local function unwatch(line, place)
  if place.told == 0 and place.asks <= line.watch + late then
    line.watchers = line.watchers - 1
    if line.watchers < 1 then
      line.watch, line.watchers = 0, 0
    end
  end
end

-- is_watched reports whether somebody in line looks when line.soon comes.
local function is_watched(line)
  return line.watch > line.now and line.watch <= line.soon + late
end

-- drop takes a process out of line.
local function drop(line, place)
  redis.call('zrem', line.queue, place.client)
  redis.call('hdel', line.requests, place.client)
  line.places[place.client] = nil
  line.dropped = line.dropped + 1
  unwatch(line, place)
end

-- places_of returns the places of clients in the queue. One that lacks its field is told to ask again, and dropped.
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

-- serve goes through the line from its head, as long as permits last. At its own place, or at the end if it has none, the process that calls
-- gets what it wants as far as there is any: line.which, line.sum, line.rest. Other processes for which there are permits are told to look,
-- once, and the permits are kept for them. One that has not come in time is dropped, and so is one that does not listen. At most some 128 are
-- looked at.
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

  -- passed is called for each place that stays: what comes behind a want that cannot be granted overtakes it.
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
      if count(line, line.channel .. ':' .. place.client, line.channel) == 0 then
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

-- arm sees to it that somebody in line looks when line.soon comes: when permits that are kept are not taken, or one expires. Of the last two in line each
-- is told when to look, unless it asks by then anyway; they will be there for long.
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

-- stand gives the process that calls its place in line, or ends it, and returns in how many ms it is to ask again: -1 if everything was granted.
-- Within so many ms permits may come back without a message.
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
  redis.call('pexpire', line.queue, '61000')
  line.stands = true
  return again
end

-- note writes the record: what came of the request.
local function note(line, done, slots, given)
  local lists = table.concat(line.which, ',') .. '|' .. (slots and table.concat(slots, ',') or '') .. '|' .. (given and table.concat(given, ',') or '')
  write(line, 'set', line.recorded, string.format('%s|%d|%d|', line.request, line.sum, done) .. lists, 'px', '121000')
end

-- close writes what is to be remembered of the places in line, and of who looks next, and tells outsiders, who listen to the channel
-- alone, of permits that were given back: '0' and their number, which is the number for Redisson, and nothing for those in line. Without a queue
-- everybody is told, and so they are if there was neither a counter nor anybody in line: Redis may have lost both.
local function close(line)
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
  if #fields > 0 and redis.call('hset', line.requests, unpack(fields)) > 0 or line.stands then -- or they end when those do that are there
    redis.call('pexpire', line.requests, '61000')
  end
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
