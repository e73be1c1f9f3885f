-- A prelude (see script.go) for scripts that give a permit to a process in line by the message that wakes it. It follows serve.lua.

-- grant takes a process out of the line, and notes it in line.grants: until it asks, but no longer than line.keep, it has the permit with its
-- id. It returns false if the process does not listen, was told to ask, or the user may not see that; or if others listen who are not in line
-- (see announce.lua): if the process is dead, nobody tells them when its time is over.
local function grant(line, client, request, till)
  local channel, id = line.channel, till % 1 == 0 and string.match(request, '^want 1 (.+)$')
  local listen = id
    and redis.pcall('pubsub', line.how == 'publish' and 'numsub' or 'shardnumsub', ear_of(line, client), channel, channel .. ':rlock_queue')
  if not listen or not listen[2] or listen[2] == 0 or listen[4] > listen[6] then
    return false
  end
  line.grants[#line.grants + 1] = {
    client = client, id = id, text = request, ends = till, score = redis.call('zscore', line.queue, client),
  }
  drop(line, client)
  return true
end

-- restore gives a process its place back.
local function restore(line, grant)
  keep(line, line.requests, 'hset', grant.client, grant.text)
  keep(line, line.ends, 'zadd', string.format('%d', grant.ends), grant.client)
  keep(line, line.queue, 'zadd', grant.score, grant.client)
end
