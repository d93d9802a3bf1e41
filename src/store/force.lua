-- Deletes whatever stands at a key, and tells what it was.
--
-- KEYS[1]  the lock's key in Redis
--
-- Replies  nil          there was no such key
--          {value, ms}  the value that was deleted (false where it was not a string), and how long it
--                       would still have lived in milliseconds (-1: for ever)
-- Before Redis 7 a server may be set to replicate scripts as they are, and then refuses a write behind `PTTL`.
if redis.replicate_commands then redis.replicate_commands() end
local left = redis.call('PTTL', KEYS[1])
if left == -2 then
  return nil
end
local found = redis.pcall('GET', KEYS[1])
if type(found) == 'table' then
  if string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    return found -- Such as a right that is missing: nothing is deleted unseen.
  end
  found = false
end
redis.call('DEL', KEYS[1])
return {found, left}
