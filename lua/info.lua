-- Reads the state of a lock. It changes nothing.
--
-- KEYS[1]      the lock: a hash
-- KEYS[2]      optional: its waiters
-- KEYS[3]      optional: the fencing counter
-- ARGV[1]      how to count the subscribers of a channel: numsub or shardnumsub
-- ARGV[2]      unlock channel
-- ARGV[3]      the type of KEYS[2]: list or zset
--
-- Reply {ttl, fields, token, subscribers, queue}  token is '' without a counter; subscribers is -1 if the server does not report it
-- Error FOREIGN                                   the key holds another hash than a lock

local ttl = redis.call('pttl', KEYS[1])
local fields = redis.call('hgetall', KEYS[1])
local foreign = owner_of({fields[1], fields[3]}, KEYS[1])
if foreign then
  return foreign
end
local token = KEYS[3] and redis.call('get', KEYS[3]) or ''
local counted = redis.pcall('pubsub', ARGV[1], ARGV[2])
local subscribers = counted.err and -1 or tonumber(counted[2])
local queue = KEYS[2] and redis.call(ARGV[3] == 'list' and 'lrange' or 'zrange', KEYS[2], '0', '999') or {}
return {ttl, fields, token, subscribers, queue}
