-- Compare and extend: pushes a lock's lease out if it is still the caller's. Never creates a key, and never cuts a
-- lease short: so these may be executed in any order, and the longest counts.
--
-- The key is read once more at the end: a connection that tracks what it reads is told when that key changes, but the
-- change that is made here itself would have used up that word.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that goes on
-- ARGV[2]  the lease in milliseconds, counted from now
--
-- Replies   1  the token stands there, and so it will for the lease at least
--           0  there is no such key
--          -1  another value stands there, and is left alone
-- Before Redis 7 a server may be set to replicate scripts as they are, and then refuses a write behind `PTTL`.
if redis.replicate_commands then redis.replicate_commands() end
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('GET', KEYS[1])
  end
  return 1
elseif found then
  return -1
end
return 0
