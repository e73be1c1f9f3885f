-- Deletes a semaphore of either kind.
--
-- KEYS[1]  the semaphore: a counter
-- KEYS[n]  if its permits expire, the permits and the slots, both sorted sets (see permits.lua)
--
-- Reply 1        deleted
-- Reply 0        it did not exist
-- Error FOREIGN  a key holds something else: nothing was deleted

local _, _, foreign = free_of(KEYS[1])
if foreign then
  return foreign
end
for i = 2, #KEYS do
  redis.call('zcard', KEYS[i]) -- an error if it is of another type
end
if redis.call('del', unpack(KEYS)) > 0 then
  return 1
end
return 0
