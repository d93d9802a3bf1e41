-- Takes a lock if it is free. Otherwise returns who has it, and for how much longer.
--
-- The script reads the key only if the lock is busy. If the connection has tracking on, Redis sends
-- an invalidation when the key that was read changes. A script is atomic: no release can come
-- between `SET` and `GET`.
--
-- The token says that the lock is taken, since it answers no other command. A proxy may send an
-- answer twice, such as the `OK` to a command before this script: if the script said `OK` as well,
-- the repeated one would give away a lock that is held.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  the lease of that hold in milliseconds
--
-- Replies  token        the key was free, and holds the token now
--          {value, ms}  the value that the key holds, and the rest of its TTL in milliseconds
--                       (-1: it has none). The value is cut to 256 bytes, which no token has: a key
--                       of another program may hold megabytes.
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
  return ARGV[1]
end
return {string.sub(redis.call('GET', KEYS[1]), 1, 256), redis.call('PTTL', KEYS[1])}
