-- Takes the first slot that is free. If none is, returns who has the one whose lease ends first,
-- and for how much longer.
--
-- The slots may have a gate. Nobody takes a slot while somebody else has the gate; whoever holds it
-- may. The check and the taking are one step, so no reader passes a writer.
--
-- The script reads the slots only if all are taken. So each of them is tracked then, and a change
-- of any of them wakes the caller. `claim.lua` says why the answer has the token.
--
-- KEYS     the slots' keys in Redis, in the order in which they are to be taken; then the
--          gate's key, if they have a gate
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  the lease of that hold in milliseconds
-- ARGV[3]  the caller's token of the gate (empty: it has none); missing if there is no gate
--
-- Replies  'token n'    the n-th slot was free, and holds the token now
--          {value, ms}  what the gate holds or, if that is free, the slot whose lease ends first, up
--                       to 256 bytes, and the rest of its TTL in milliseconds (-1: it has none)
--
-- A key that holds no lock, such as one of another program, takes a slot like any other value.
if ARGV[3] then
  local gate = table.remove(KEYS)
  local found = redis.call('GET', gate)
  if found and (found ~= ARGV[3] or found == '') then
    return {string.sub(found, 1, 256), redis.call('PTTL', gate)}
  end
end
for n, key in ipairs(KEYS) do
  if redis.call('SET', key, ARGV[1], 'NX', 'PX', ARGV[2]) then
    return ARGV[1] .. ' ' .. n
  end
end
local first, least
for _, key in ipairs(KEYS) do
  local left = redis.call('PTTL', key)
  local found = redis.pcall('GET', key)
  if type(found) == 'table' then
    if string.sub(found.err, 1, 9) ~= 'WRONGTYPE' then
      return found -- Such as a missing right.
    end
    found = '(not a string)'
  end
  if found == ARGV[1] then
    return {found, left} -- The caller has to know that.
  end
  if not first or left >= 0 and (least < 0 or left < least) then
    first, least = found, left
  end
end
return {string.sub(first, 1, 256), least}
