-- This text stands before the scripts of latches (see script.go).

-- count_of is what the key of a latch holds, as text, false if there is nothing; or nil and an error if that is no count.
local function count_of(key)
  local count = redis.call('get', key)
  if count and not string.match(count, '^%-?%d+$') then
    return nil, {err = 'FOREIGN the key holds a text that is no count'}
  end
  return count
end

-- answer_of is what a call of a client was answered before, as text, or nil. A client makes the calls for a latch one after the other, so
-- the last one is enough: an earlier one is late, and nobody waits for its answer.
local function answer_of(record, client, number)
  local last = redis.call('hget', record, client)
  local at, answer = string.match(last or '', '^(%d+) (%d)$')
  if at == number then
    return answer
  end
  return at and tonumber(at) > tonumber(number) and '0' or nil
end

-- answered notes what a call is answered, for so many ms.
local function answered(record, client, number, answer, ms)
  redis.call('hset', record, client, number .. ' ' .. answer)
  redis.call('pexpire', record, ms)
end
