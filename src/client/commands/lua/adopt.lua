-- Swaps the token of a lock that was handed over for the token of the hold that goes on with it. Of
-- all callers that try this, only one finds the old token.
--
-- The script may be sent again after a lost answer. If the first one was executed, the key holds
-- the new token. No other hold can have had the lock since then: a token that is gone never comes
-- back. So the new token is as good an answer as the old one, and the lease is extended, as by a
-- renewal, so that it counts from this script in any case. It is never shortened: a script that is
-- executed late may find a lease that is longer than its own.
--
-- With a counter, the script also numbers the hold, as `claim_fenced.lua` does, which says why it
-- is done in this way. A hold is numbered once: a repeated script returns what is stored. Whatever
-- can fail comes before the key's `SET`. The old number is not stored: one that is ahead of the
-- counter and of the clock may be made up, and the counter would stay ahead for just as long.
--
-- KEYS[1]  the lock's key in Redis
-- KEYS[2]  the counter's key; missing if the hold is not to be numbered
-- ARGV[1]  the token of the hold that begins
-- ARGV[2]  the lease of that hold in milliseconds
-- ARGV[3]  the least time that the counter stays, in milliseconds; empty without a counter
-- ARGV[4]  the token that was handed over
-- ARGV[5]  the number of that hold: the new one is larger
--
-- Replies  token        the key holds the new token, for the lease at least (without a counter)
--          'token n'    the same, and n is the hold's number (with a counter)
--          0            there is no such key
--          {value, ms}  the key holds another value, of which this is the beginning, and is left
--                       alone; the rest of its TTL in milliseconds (-1: it has none)
--
-- Before Redis 7, a server may be set to replicate scripts as they are. It then refuses a write
-- after `TIME` and `PTTL`.
if redis.replicate_commands then redis.replicate_commands() end
local call = redis.call
local found = call('GET', KEYS[1])
if not found then
  return 0
elseif found ~= ARGV[4] and found ~= ARGV[1] then
  return {string.sub(found, 1, 256), call('PTTL', KEYS[1])}
end
local answer = ARGV[1]
if KEYS[2] then
  local stored = redis.pcall('GET', KEYS[2])
  if type(stored) == 'table' then
    if string.sub(stored.err, 1, 9) ~= 'WRONGTYPE' then
      return stored -- Such as a missing right.
    end
    return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' is not a string')
  end
  local is_number = not stored or string.find(stored, '^%d+$')
    and (#stored < 16 or #stored == 16 and stored < '9007199254740991')
  if not is_number then
    local shown = string.sub(stored, 1, 40)
    return redis.error_reply('NOFENCE the counter ' .. KEYS[2] .. ' holds no number: ' .. shown)
  end
  local number = stored
  if found == ARGV[4] or not stored then
    local time = call('TIME')
    local stays = ARGV[3]
    number = time[1] .. string.sub('00000' .. time[2], -6)
    local last, old = tonumber(stored or 0), tonumber(ARGV[5])
    if old > last and old >= tonumber(number) then
      return redis.error_reply('NOFENCE the parcel is ahead of the counter ' .. KEYS[2])
    elseif last >= tonumber(number) then
      -- The clock was set back. The counter has to stay until the clock has passed it.
      stays = string.format('%.0f', stays + (last - number) / 1000)
      number = string.format('%.0f', last + 1)
    end
    call('SET', KEYS[2], number, 'PX', stays)
  end
  answer = answer .. ' ' .. number
end
if found == ARGV[4] then
  call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
elseif call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  call('PEXPIRE', KEYS[1], ARGV[2])
end
return answer
