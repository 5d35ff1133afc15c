-- Deletes a lock, whoever's it is. 1: deleted, 0: absent; a key of another type is an error.
-- The token goes to nobody: on other nodes it may still be the key to the lock.
if not redis.call('GET', KEYS[1]) then return 0 end
redis.call('DEL', KEYS[1])
redis.pcall('PUBLISH', ARGV[1], 'forced')
return 1
