-- A prelude (see script.go) for the scripts of latches.

-- count_of returns the count in the key of a latch as text, false if there is no key, or nil and an error if it holds something else.
local function count_of(key)
  local count = redis.call('get', key)
  if count and not string.match(count, '^%-?%d+$') then
    return nil, {err = 'FOREIGN the key holds a text that is no count'}
  end
  return count
end

-- answer_of returns the recorded answer to a client's call as text, or nil. A client makes its calls for a latch one after the other,
-- so the record of the last call is enough: earlier ones are late, and nobody waits for their answers.
local function answer_of(record, client, number)
  local last = redis.call('hget', record, client)
  local at, answer = string.match(last or '', '^(%d+) (%d)$')
  if at == number then
    return answer
  end
  return at and tonumber(at) > tonumber(number) and '0' or nil
end

-- answered records the answer to a call, for that many ms.
local function answered(record, client, number, answer, ms)
  redis.call('hset', record, client, number .. ' ' .. answer)
  if type(redis.pcall('pexpire', record, ms)) ~= 'number' then -- the record may have no expiry yet
    redis.call('hdel', record, client)
    redis.call('pexpire', record, ms)
  end
end

-- forget makes a recorded call one that has not run: the record shows the number before, so that earlier calls stay late.
local function forget(record, client, number)
  redis.call('hset', record, client, string.format('%d 0', number - 1))
end

-- done records that a call was made, and then makes its change by a command. If that fails, it returns nil and the error.
local function done(record, client, number, ms, ...)
  answered(record, client, number, '1', ms)
  local result = redis.pcall(...)
  if type(result) == 'table' and result.err then
    forget(record, client, number)
    return nil, result
  end
  return result
end
