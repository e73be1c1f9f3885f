-- Releases many locks, each by release.lua, which is sent along as the function release.
--
-- KEYS[k]      the keys of all locks in order, all of one cluster slot
-- ARGV[n]      for each lock: the number of its keys
-- ARGV[n+1]    the number of its arguments
-- ARGV[n+1+a]  its arguments, see release.lua; the next lock's follow
--
-- Reply {reply, ...}  one per lock, as from release.lua, errors included
--
-- A lock that cannot be released must not affect the others, so each is released with pcall.

local replies, k, i = {}, 0, 1
while i < #ARGV do
  local keys, args = {}, {}
  for n = 1, tonumber(ARGV[i]) do
    k = k + 1
    keys[n] = KEYS[k]
  end
  for a = 1, tonumber(ARGV[i + 1]) do
    args[a] = ARGV[i + 1 + a]
  end
  i = i + 2 + #args
  local done, reply = pcall(release, keys, args)
  if not done and type(reply) ~= 'table' then
    reply = redis.error_reply(tostring(reply)) -- a text before Redis 7
  end
  replies[#replies + 1] = reply
end
return replies
