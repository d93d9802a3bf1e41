-- Compare and delete: releases a lock if it is still the caller's.
--
-- KEYS[1]  the lock's key in Redis
-- ARGV[1]  the token of the hold that ends
--
-- Replies   1  the key held the token, and is deleted now
--           0  there was no such key
--          -1  the key holds another value, and is left alone
local found = redis.call('GET', KEYS[1])
if found == ARGV[1] then
  return redis.call('DEL', KEYS[1])
elseif found then
  return -1
end
return 0
