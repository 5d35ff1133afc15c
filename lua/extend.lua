-- Lengthens a held lock, never shortens it. 1: still ours, 0: absent, -1: another's.
local held = redis.call('GET', KEYS[1])
if held == ARGV[1] then
  if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
  end
  return 1
end
return held and -1 or 0
