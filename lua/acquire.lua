-- SET NX PX GET for servers before 7.0: nothing if the token now holds the name,
-- else the value that was there.
local held = redis.call('GET', KEYS[1])
if held then return held end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
