-- Takes a lock if it is free, and otherwise tells who has it and for how long yet.
--
-- The key is read only where it stays another's: a connection that tracks what it reads is told when such a key
-- changes. The script is atomic, so no release can come between the attempt and the look.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  its lease in milliseconds
--
-- Replies  OK           the key was free, and holds the token now
--          {value, ms}  the value that stands there, and how long it still lives in milliseconds (-1: for ever)
local set = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
if set then
  return set
end
return {redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1])}
