-- Compare and keep: ends a hold whose lock is to stay taken for a while. Nobody owns the lock from
-- then on, and the key expires by itself.
--
-- The new value is not a token. So a renewal that comes late extends nothing, and no process counts
-- as a holder that may be gone. A second execution of this script changes nothing, so the script
-- may be sent again after a lost answer.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that ends
-- ARGV[2]  for how much longer the lock stays taken, in milliseconds
--
-- Replies   1  the key was kept, by this execution or by an earlier one
--           0  there is no such key
--          -1  the key holds another value, and is left alone
local found = redis.call('GET', KEYS[1])
local kept = 'kept:' .. ARGV[1]
if found == ARGV[1] then
  -- With full memory, Redis refuses a `SET` unless the script has written before.
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  redis.call('SET', KEYS[1], kept, 'PX', ARGV[2])
  return 1
elseif found == kept then
  return 1
elseif found then
  return -1
end
return 0
