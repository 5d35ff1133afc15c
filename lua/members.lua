-- Who uses this node for locks: a hash with the node's own id under 'id', and one field
-- per way in which clients are set up, with the time of the last of them in seconds.
-- What is older than a day is dropped, and of more than 64 the oldest; the key lives for
-- a day. ARGV: an id for a node that has none yet, [a field to enter, those that it
-- replaces]. Returns the id, the node's time, and all fields as they were before.
local now = tonumber(redis.call('TIME')[1])
redis.call('HSETNX', KEYS[1], 'id', ARGV[1])
local all, kept, oldest, least = redis.call('HGETALL', KEYS[1]), 0, nil, nil
for i = 1, #all, 2 do
  local at = tonumber(all[i + 1])
  if all[i] == 'id' then
  elseif not at or math.abs(now - at) > 86400 then
    redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[2] then
    kept = kept + 1
    if not least or at < least then oldest, least = all[i], at end
  end
end
for i = 3, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
if ARGV[2] then
  if kept > 63 then redis.call('HDEL', KEYS[1], oldest) end
  redis.call('HSET', KEYS[1], ARGV[2], string.format('%.0f', now))
end
redis.call('PEXPIRE', KEYS[1], '86400000')
return {redis.call('HGET', KEYS[1], 'id'), string.format('%.0f', now), all}
