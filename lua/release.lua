-- Deletes a lock if it is still ours, and tells those who wait, if a channel and a
-- message are given. 0: absent, -1: another's, else deleted: 1 + how many were told.
-- A PUBLISH that is denied must not hide the delete.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then return held and -1 or 0 end
redis.call('DEL', KEYS[1])
if not ARGV[2] then return 1 end
local told = redis.pcall('PUBLISH', ARGV[2], ARGV[3])
return type(told) == 'number' and 1 + told or 1
