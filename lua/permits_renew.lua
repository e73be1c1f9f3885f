-- Extends the leases of permits, each only if it has not expired.
--
-- KEYS[n]     the permits of each semaphore: a sorted set (see permits.lua), all of one cluster slot
-- ARGV[1]     lease in ms, counted from now
-- ARGV[at]    for each semaphore: the number of permits
-- ARGV[at+m]  their ids; the next semaphore's number follows
--
-- Reply {verdict, ...}  one per permit: 1 extended, 0 not held, -1 refused for now
--
-- A bad key must not affect the others, so each is read with pcall before it is written: see renew.lua. A longer lease stays.

local now = clock()
local ends = string.format('%d', math.min(now + ARGV[1] + 1, 922337203685477)) -- see permits.lua
local verdicts, at = {}, 2
for i = 1, #KEYS do
  local ids, entries = {}, {}
  for m = 1, tonumber(ARGV[at]) do
    ids[m] = ARGV[at + m]
  end
  at = at + 1 + #ids
  local scores = #ids > 0 and redis.pcall('zmscore', KEYS[i], unpack(ids)) or {}
  for m, id in ipairs(ids) do
    local verdict = 0
    if scores.err then
      verdict = string.find(scores.err, 'WRONGTYPE', 1, true) and 0 or -1
    elseif scores[m] and tonumber(scores[m]) > now then
      verdict = 1
      entries[#entries + 1] = ends
      entries[#entries + 1] = id
    end
    verdicts[#verdicts + 1] = verdict
  end
  if #entries > 0 then
    redis.call('zadd', KEYS[i], 'xx', 'gt', unpack(entries))
  end
end
return verdicts
