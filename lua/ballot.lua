-- An acquire, attach or repair that counts a fencing token, or asks how old the node is.
-- KEYS: name, [its counter]. ARGV: token, ttl in ms, least age in s, the token to replace
-- or '', a number, 'propose' it for a new token or 'reach' it.
-- {1, n}: done. {2, n}: the token was there already. {0}: what was to be replaced is not
-- there. {-1, s}: too young to vote for another s seconds. {value, ms}: that is there.
local age, old, number = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
if age > 0 and redis.call('TIME')[1] - redis.call('LASTSAVE') < age then
  local up = tonumber(string.match(redis.call('INFO', 'server'), 'uptime_in_seconds:(%d+)'))
  if up < age then return {-1, age - up} end
end
local held = redis.call('GET', KEYS[1])
local mine = held == ARGV[1]
if held and not mine and (old == '' or held ~= old) then return {held, redis.call('PTTL', KEYS[1])} end
if not held and old ~= '' then return {0} end
local counter = ''
if KEYS[2] then
  local n = counted()
  if not n then return redis.error_reply('ERR the fencing counter is not a number that can rise') end
  if ARGV[6] == 'reach' then
    n = math.max(n, number)
  elseif not mine or n == 0 then
    local here, far = now(), 600000000
    n = math.max(n + 1, math.min(math.max(number, here - far), here + far))
  end
  counter = store(n)
end
if mine then return {2, counter} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return {1, counter}
