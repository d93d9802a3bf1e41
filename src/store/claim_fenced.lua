-- Takes a lock if it is free, and numbers the hold. Otherwise answers who has the lock, and for how
-- much longer. The number is larger than that of every earlier hold of this lock.
--
-- The counter may be gone: expired, evicted, deleted, or lost in a restart or a failover. A number
-- that only counts would then come again, and a resource could not tell the old hold from the new
-- one. So the number is never less than the server's time in microseconds. That is larger than
-- every earlier number, unless the server's clock was set back and the counter was lost as well.
--
-- Whatever can fail comes before the lock's `SET`: no lock is taken without a number. The counter
-- is not read while another holder has the lock: with tracking on, Redis would send an
-- invalidation for it as well. (Before 7.2 it does so in any case, for each key of a script.)
--
-- KEYS[1]  the lock's key in Redis
-- KEYS[2]  the counter's key
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  the lease of that hold in milliseconds
-- ARGV[3]  how long the counter stays, in milliseconds
--
-- Replies  n               the key was free, and holds the token now; n is the hold's number
--          {value, ms}     the value that the key holds, and the rest of its TTL in milliseconds
--                          (-1: it has none)
--          {value, ms, n}  the same, if the value is the token: n is its number (0: not known)
--
-- Before Redis 7, a server may be set to replicate scripts as they are. It then refuses a write
-- behind `TIME`.
if redis.replicate_commands then redis.replicate_commands() end
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then
  return {found, redis.call('PTTL', KEYS[1])}
end
local stored = redis.pcall('GET', KEYS[2])
if type(stored) == 'table' then
  if string.sub(stored.err, 1, 9) ~= 'WRONGTYPE' then
    return stored -- Such as a missing right.
  end
  return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' is not a string')
end
local last = tonumber(stored or '0')
-- From 2^53 on, Lua no longer tells a number from the next one.
if stored and not (string.find(stored, '^%d+$') and last < 9007199254740991) then
  local shown = string.sub(stored, 1, 40)
  return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' holds no number: ' .. shown)
end
if found then
  return {found, redis.call('PTTL', KEYS[1]), last}
end
local time = redis.call('TIME')
local fence = math.max(last + 1, time[1] * 1000000 + time[2])
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
