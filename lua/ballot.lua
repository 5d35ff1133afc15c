-- An acquire, attach or repair that counts a fencing token, or asks how old the node is.
-- KEYS: name, [its counter]. ARGV: token, ttl in ms, least age in s, the token to replace
-- or '', a number, 'propose' it for a new token or 'reach' it.
-- {1, n}: done. {2, n}: the token was there already. {0}: what was to be replaced is not
-- there. {-1, s}: too young to vote for another s seconds. {value, ms}: that is there.
local age, old, number = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])
if age > 0 then
  -- A save is never before the start: an old one proves the age, without INFO's length.
  local saved = redis.pcall('LASTSAVE')
  if type(saved) ~= 'number' then return redis.error_reply('ERR the restart guard needs LASTSAVE: ' .. saved.err) end
  if redis.call('TIME')[1] - saved < age then
    local info = redis.pcall('INFO', 'server')
    if type(info) ~= 'string' then return redis.error_reply('ERR the restart guard needs INFO server: ' .. info.err) end
    local up = tonumber(string.match(info, 'uptime_in_seconds:(-?%d+)') or nil)
    if not up then return redis.error_reply('ERR the restart guard needs INFO server: it names no uptime') end
    if up < age then return {-1, age - up} end
  end
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
