-- Compare and extend: extends a lock's lease if the lock is still the caller's. Never creates a
-- key, and never shortens a lease: if Redis executes several of these scripts, in whatever order,
-- the longest lease counts.
--
-- The script reads the key once more at the end, for a connection with tracking on. Its own
-- `PEXPIRE` changes the key, and so uses up the invalidation that the first read registered for.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that goes on
-- ARGV[2]  the lease in milliseconds, counted from now
--
-- Replies  token  the key holds the token, for the lease at least
--              0  there is no such key
--             -1  the key holds another value, and is left alone
--
-- Before Redis 7, a server may be set to replicate scripts as they are. It then refuses a write
-- after `PTTL`.
if redis.replicate_commands then redis.replicate_commands() end
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    redis.call('GET', KEYS[1])
  end
  return found
elseif found then
  return -1
end
return 0
