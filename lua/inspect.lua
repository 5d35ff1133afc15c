-- Reads a lock and changes nothing: its value, its ttl in milliseconds, its fence counter.
-- The counter is no KEYS[2]: who may not read it, or has it in another slot, gets the rest.
local held = redis.call('GET', KEYS[1])
local fence = redis.pcall('GET', ARGV[1])
if type(fence) ~= 'string' then fence = false end
return {held, redis.call('PTTL', KEYS[1]), fence}
