-- Releases many locks, each as release.lua does, which is sent along as the function release.
--
-- KEYS[k]      the keys of each lock, one after the other, all of one cluster slot
-- ARGV[n]      for each lock: how many keys it has
-- ARGV[n+1]    how many arguments it has
-- ARGV[n+1+a]  these, see release.lua; the next n comes behind them
--
-- Reply {reply, ...}  one for each, as from release.lua, also if it is an error
--
-- One lock that cannot be released must not keep the others, so each is released with pcall.

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
