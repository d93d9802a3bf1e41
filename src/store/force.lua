-- Deletes whatever stands at a key, and tells what it was.
--
-- KEYS[1]  the lock's key in Redis
--
-- Replies  nil          there was no such key
--          {value, ms}  the value that was deleted (false where it was not a string), and how long it
--                       would still have lived in milliseconds (-1: for ever)
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return nil
end
local found = redis.pcall('GET', KEYS[1])
redis.call('DEL', KEYS[1])
if type(found) == 'table' then
  found = false
end
return {found, left}
