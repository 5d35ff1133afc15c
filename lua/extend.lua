-- Lengthens a held lock, never shortens it. 1: still ours, 0: absent, -1: another's.
-- A third argument makes it write in any case, for a WAIT on this connection.
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  elseif ARGV[3] then
    redis.call('PEXPIRE', KEYS[1], redis.call('PTTL', KEYS[1]))
  end
  return 1
end
return held and -1 or 0
