-- Releases many locks, each by release.lua, which is sent along as the function release.
--
-- KEYS[k]      the keys of all locks in order, all of one cluster slot
-- ARGV[n]      the number of locks in a row with the same numbers of keys and arguments, and the same arguments but the owner and the
--              channel
-- ARGV[n+1]    the number of keys of each
-- ARGV[n+2]    the number of arguments of each. The arguments from the third on follow, see release.lua; then owner and channel of each;
--              then the next row
--
-- Reply {reply, ...}  one per lock, as from release.lua, errors included
--
-- A lock that cannot be released must not affect the others, so each is released with pcall. Most often nobody waits, which one command
-- shows for a whole row.

local replies, k, n = {}, 0, 1
while n < #ARGV do
  local locks, its, all = tonumber(ARGV[n]), tonumber(ARGV[n + 1]), tonumber(ARGV[n + 2])
  local keys, args, queues, from = {}, {}, {}, k
  n = n + 3
  for a = 3, all do
    args[a], n = ARGV[n], n + 1
  end
  if all < 5 and (args[3] or '') ~= '' then
    for lock = 1, locks do
      k = from + its * lock
      queues[lock] = KEYS[k]
    end
    args.alone = redis.pcall('exists', unpack(queues)) == 0
  end
  k = from
  for _ = 1, locks do
    for key = 1, its do
      k = k + 1
      keys[key] = KEYS[k]
    end
    args[1], args[2], n = ARGV[n], ARGV[n + 1], n + 2
    local done, reply = pcall(release, keys, args)
    if not done and type(reply) ~= 'table' then
      reply = redis.error_reply(tostring(reply)) -- a text before Redis 7
    end
    replies[#replies + 1] = reply
  end
end
return replies
