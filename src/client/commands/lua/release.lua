-- Compare and delete: releases a lock if it is still the caller's.
--
-- KEYS     the lock's key in Redis or, if nobody knows which of them holds the token, those of all
--          slots
-- ARGV[1]  the token of the hold that ends
--
-- Replies   1  a key held the token, and is deleted now
--           0  there was no such key
--          -1  a key holds another value, and is left alone
local reply = 0
for _, key in ipairs(KEYS) do
  local found = redis.pcall('GET', key)
  if type(found) == 'table' and string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
    return found -- Such as a missing right.
  elseif found == ARGV[1] then
    return redis.call('DEL', key)
  elseif found then
    reply = -1
  end
end
return reply
