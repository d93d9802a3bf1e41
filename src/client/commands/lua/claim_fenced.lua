-- Takes a lock if it is free, and numbers the hold. Otherwise returns who has the lock, and for how
-- much longer. The number is larger than that of every earlier hold of this lock.
--
-- The counter may be gone: expired, evicted, deleted, or lost in a restart or a failover. A number
-- that only counts would then repeat, and a resource could not tell the old hold from the new one.
-- So the number is never less than the server's time in microseconds. That is larger than every
-- earlier number, unless the server's clock was set back and the counter was lost as well.
--
-- Whatever can fail comes before the lock's `SET`: no lock is taken without a number. The counter
-- is not read while another holder has the lock: with tracking on, Redis would send an
-- invalidation for it as well. (Before 7.2, it does so in any case, for each key of a script.)
--
-- The number is kept as digits, and compared as digits where both have the same length: reading and
-- writing numbers would take longer than all commands of this script but one.
--
-- KEYS[1]  the lock's key in Redis
-- KEYS[2]  the counter's key
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  the lease of that hold in milliseconds
-- ARGV[3]  the least time that the counter stays, in milliseconds
--
-- Replies  'token n'       the key was free, and holds the token now; n is the hold's number
--          {value, ms}     the value that the key holds, up to 256 bytes, and the rest of its TTL
--                          in milliseconds (-1: it has none)
--          {value, ms, n}  the same, if the value is the token: n is its number (0: not known)
--
-- Before Redis 7, a server may be set to replicate scripts as they are. It then refuses a write
-- after `TIME`.
if redis.replicate_commands then redis.replicate_commands() end
local call = redis.call
local found = call('GET', KEYS[1])
if found and found ~= ARGV[1] then
  return {string.sub(found, 1, 256), call('PTTL', KEYS[1])}
end
local stored = redis.pcall('GET', KEYS[2])
if type(stored) == 'table' then
  if string.sub(stored.err, 1, 9) ~= 'WRONGTYPE' then
    return stored -- Such as a missing right.
  end
  return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' is not a string')
end
-- From 2^53 on, Lua no longer tells a number from the next one.
local is_number = not stored or string.find(stored, '^%d+$')
  and (#stored < 16 or #stored == 16 and stored < '9007199254740991')
if not is_number then
  local shown = string.sub(stored, 1, 40)
  return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' holds no number: ' .. shown)
end
if found then
  return {found, call('PTTL', KEYS[1]), stored or '0'}
end
local time = call('TIME')
local fence = time[1] .. string.sub('00000' .. time[2], -6)
local stays = ARGV[3]
if stored and (#stored ~= #fence or stored >= fence) and tonumber(stored) >= tonumber(fence) then
  -- The clock was set back. The counter has to stay until the clock has passed it.
  stays = string.format('%.0f', stays + (stored - fence) / 1000)
  fence = string.format('%.0f', stored + 1)
end
call('SET', KEYS[2], fence, 'PX', stays)
call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return ARGV[1] .. ' ' .. fence
