-- Hands a lock over: the new token takes the place of the old one and of nothing
-- else. 1: done, 2: the new token was there already, 0: absent, else what is there.
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return 2 end
if held == ARGV[3] then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
  return 1
end
return held or 0
