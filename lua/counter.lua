-- The fencing counter of a name, KEYS[2]: this goes in front of the scripts that use it.
-- Numbers up to 2^53 are exact in Lua, but printed exactly only by format.
local function now()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
-- The counter, 0 if there is none, nothing if it is no number below 2^53 − 1.
local function counted()
  local text = redis.pcall('GET', KEYS[2])
  if not text then return 0 end
  local n = type(text) == 'string' and tonumber(text)
  return n and n >= 0 and n < 9007199254740991 and n % 1 == 0 and n or nil
end
-- Sets the counter, for seven days beyond its own time or the present, whichever is later.
local function store(n)
  local text, ahead = string.format('%.0f', n), math.max(0, math.ceil((n - now()) / 1000))
  redis.call('SET', KEYS[2], text, 'PX', string.format('%.0f', 604800000 + ahead))
  return text
end
