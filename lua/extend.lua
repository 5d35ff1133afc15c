-- Lengthens a held lock, never shortens it. 1: still ours, 0: absent, -1: another's.
-- 'write' makes it write in any case, for a WAIT on this connection. With a fencing
-- counter, KEYS[2], that has fallen behind the token or is half expired, renews that
-- too; where that is denied, as by a server without memory, the lock is still ours.
local held = redis.call('GET', KEYS[1])
if held ~= ARGV[1] then return held and -1 or 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
elseif ARGV[3] == 'write' then
  redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]))
end
if KEYS[2] then
  local n, fence = counted(), tonumber(ARGV[4])
  if n and (n < fence or redis.call('PTTL', KEYS[2]) < 302400000) then pcall(store, math.max(n, fence)) end
end
return 1
