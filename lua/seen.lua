-- A prelude (see script.go) for scripts that need to know whether a waiting process listens.
--
-- A server counts its own subscribers only, but a cluster's bus or a replica delivers messages to others, too: an answer of 0 is not
-- death. So the call that queues a process, which listens by then, counts it: a place whose score has a fraction belongs to a process
-- that this server did not count. Any other process that is not counted later has died, or its connection has moved.

local function channel_of(channel, entry)
  return channel .. ':' .. string.sub(entry, 1, 36)
end

-- listening counts the subscribers of channels: {channel, count, ...}, or an error.
local function listening(publish, ...)
  return redis.pcall('pubsub', publish == 'publish' and 'numsub' or 'shardnumsub', ...)
end

-- unseen returns what a score has more if the process of an entry is not counted.
local function unseen(publish, channel, entry)
  local counted = listening(publish, channel_of(channel, entry))
  return not counted.err and counted[2] == 0 and 0.5 or 0
end

local function is_unseen(score)
  return score % 1 == 0.5
end
