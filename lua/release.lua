-- Deletes a lock if it is still ours. 1: deleted, 0: absent, -1: another's.
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return held and -1 or 0
