-- Tells the holder of a gate whether all slots behind it are free. If not, returns who has the slot
-- whose lease ends first, and for how much longer. Changes nothing.
--
-- The gate is read in the same step: if the caller has lost it, new readers may come.
--
-- No command before this one may have the same answer: the one that took the gate is answered by
-- the bare token.
--
-- KEYS     the slots' keys in Redis, and then the gate's
-- ARGV[1]  the caller's token of the gate
--
-- Replies  'token alone'  the gate holds the token, and no slot is taken
--          {value, ms}    as `claim_slot.lua` has it, of a slot that is taken
local gate = table.remove(KEYS)
if redis.call('GET', gate) ~= ARGV[1] then
  return redis.error_reply('NOGATE the gate ' .. gate .. ' is not held any more')
end
local first, least
for _, key in ipairs(KEYS) do
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then
    if string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
      return found -- Such as a missing right.
    end
    found = '(not a string)'
  end
  if found then
    local left = redis.call('PTTL', key)
    if not first or left >= 0 and (least < 0 or left < least) then
      first, least = found, left
    end
  end
end
if not first then
  return ARGV[1] .. ' alone'
end
return {string.sub(first, 1, 256), least}
