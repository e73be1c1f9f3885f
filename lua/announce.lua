-- A prelude (see script.go) for scripts that return permits.

-- announce publishes the number of free permits, if somebody listens whom nobody told: with a '0' before it for outsiders, which listen to
-- the channel alone, and are Redisson's; without it if nobody is in line, but some believe that they are. Then Redis has lost the line.
local function announce(how, channel, free, queue, length)
  local count = how == 'publish' and 'numsub' or 'shardnumsub'
  if queue and length == 0 and redis.pcall('pubsub', count, channel)[2] == 0 then
    return
  end
  local n = queue and redis.pcall('pubsub', count, channel, channel .. ':rlock_queue') or {}
  local all, inside, text = n[2], n[4], string.format('%d', free)
  if not queue or all and length == 0 and inside > 0 then
    redis.pcall(how, channel, text)
  elseif not all or all > inside then
    redis.pcall(how, channel, '0' .. text)
  end
end
