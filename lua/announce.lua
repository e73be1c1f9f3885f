-- A prelude (see script.go) for scripts that return permits.

-- announce publishes the number of free permits, unless all that listen are known to be in line: with a '0' before it for outsiders, which
-- listen to the channel alone, and are Redisson's. While nobody is in line it is for all: some may believe that they are, for Redis may have
-- lost the line, and a server counts its own listeners only (see seen.lua), so that 0 does not mean that nobody listens.
local function announce(how, channel, free, queue, length)
  local text = string.format('%d', free)
  local n = {}
  if queue and length > 0 then
    n = redis.pcall('pubsub', how == 'publish' and 'numsub' or 'shardnumsub', channel, channel .. ':rlock_queue')
    text = '0' .. text
  end
  if not n[2] or n[2] > n[4] then
    redis.pcall(how, channel, text)
  end
end
