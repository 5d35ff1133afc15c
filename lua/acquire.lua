-- SET NX PX GET for servers before 7.0 and for those who wait: nothing if the token
-- now holds the name, else the value that was there and how many ms it has left.
local held = redis.call('GET', KEYS[1])
if held then return {held, redis.call('PTTL', KEYS[1])} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return false
