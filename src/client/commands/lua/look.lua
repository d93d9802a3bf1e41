-- Returns who has a lock, and for how much longer. Changes nothing.
--
-- KEYS[1]  the lock's key in Redis
-- KEYS[2]  the counter's key; missing if the hold's number is not asked for
--
-- Replies  nil             there is no such key
--          {value, ms}     the value that the key holds, up to 256 bytes, and the rest of its TTL in
--                          milliseconds (-1: it has none)
--          {value, ms, n}  the same with a counter; n is the number in it (empty: not known)
local call = redis.call
local found = call('GET', KEYS[1])
if not found then
  return nil
end
local number
if KEYS[2] then
  local stored = redis.pcall('GET', KEYS[2])
  number = type(stored) == 'string' and string.sub(stored, 1, 20) or ''
end
return {string.sub(found, 1, 256), call('PTTL', KEYS[1]), number}
