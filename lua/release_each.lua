-- Releases many locks, each by release.lua, which is sent along as the function release.
--
-- KEYS[k]      the keys of all locks in order, all of one cluster slot
-- ARGV[n]      the number of locks in a row with the same numbers of keys and arguments, and the same arguments but the owner and the
--              channel
-- ARGV[n+1]    the number of keys of each
-- ARGV[n+2]    the number of arguments of each. The arguments from the third on follow, see release.lua; then owner and channel of each;
--              then the next row
--
-- Reply 1             each lock was released by reply 1
-- Reply {reply, ...}  otherwise: one per lock, as from release.lua, errors included
--
-- A lock that cannot be released must not affect the others, so each is released with pcall. Most often nobody waits, which one command
-- shows for a whole row. Then release.lua is left the rest of those where somebody listens.

local try, replies, others, k, n = redis.pcall, {}, false, 0, 1
while n < #ARGV do
  local locks, its, all = tonumber(ARGV[n]), tonumber(ARGV[n + 1]), tonumber(ARGV[n + 2])
  local keys, args, queues, alone, from = {}, {}, {}, false, k
  n = n + 3
  for a = 3, all do
    args[a], n = ARGV[n], n + 1
  end
  if all < 5 and (args[3] or '') ~= '' then
    for lock = 1, locks do
      k = from + its * lock
      queues[lock] = KEYS[k]
    end
    alone = try('exists', unpack(queues)) == 0
  end
  local publish = args[4] or 'publish'
  for _ = 1, locks do
    local owner, channel, reply, told = ARGV[n], ARGV[n + 1], nil, nil
    k, n = from + 1, n + 2
    if alone then -- as in release.lua
      reply = try('hdel', KEYS[k], owner)
      told = reply == 1 and try(publish, channel, '0')
    end
    if not alone or told and told ~= 0 then
      for key = 1, its do
        k = from + key
        keys[key] = KEYS[k]
      end
      args[1], args[2], args.told = owner, channel, told
      local done, why = pcall(release, keys, args)
      reply = not done and type(why) ~= 'table' and redis.error_reply(tostring(why)) or why -- a text before Redis 7
    end
    replies[#replies + 1], others = reply, others or reply ~= 1
    from = from + its
  end
  k = from
end
if others then
  return replies
end
return 1
