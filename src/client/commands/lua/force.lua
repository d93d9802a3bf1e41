-- Deletes a key whatever its value, and returns the value.
--
-- KEYS[1]  the lock's key in Redis
--
-- Replies  nil          there was no such key
--          {value, ms}  the value that was deleted, up to 256 bytes (nil if it was not a string),
--                       and the rest of its TTL in milliseconds (-1: it had none)
--
-- Before Redis 7, a server may be set to replicate scripts as they are. It then refuses a write
-- after `PTTL`.
if redis.replicate_commands then redis.replicate_commands() end
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return nil
end
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then
  if string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    return found -- Such as a missing right. Then the key is not deleted.
  end
  found = false
end
redis.call('DEL', KEYS[1])
return {found and string.sub(found, 1, 256), left}
