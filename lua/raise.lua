-- Brings the fencing counter to a number while the lock is still ours, never down. The
-- counter, or -1: the lock is not.
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return -1 end
local n = counted()
if not n then return redis.error_reply('ERR the fencing counter is not a number that can rise') end
return store(math.max(n, tonumber(ARGV[2])))
