-- A prelude (see script.go) for scripts that return permits.

-- announce publishes the number of free permits. If processes are in line, they are told by their own messages, and the number has a '0'
-- before it: it is for outsiders, which listen to the channel alone, and are Redisson's. If nobody is in line, some may believe that they
-- are. Then Redis has lost the line.
local function announce(how, channel, free, length)
  local text = string.format('%d', free)
  if length == 0 then
    redis.pcall(how, channel, text)
    return
  end
  local n = redis.pcall('pubsub', how == 'publish' and 'numsub' or 'shardnumsub', channel, channel .. ':rlock_queue')
  if not n[2] or n[2] > n[4] then
    redis.pcall(how, channel, '0' .. text)
  end
end
