-- Compare and keep: ends a hold whose lock is to stay taken for a while. Nobody owns the lock from
-- then on, and the key expires by itself. Executing this script a second time changes nothing but
-- the end, so it may be sent again after a lost answer.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that ends
-- ARGV[2]  for how much longer the lock stays taken, in milliseconds
--
-- Replies   1  the key holds the token, and expires after that time
--           0  there is no such key
--          -1  the key holds another value, and is left alone
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif found then
  return -1
end
return 0
