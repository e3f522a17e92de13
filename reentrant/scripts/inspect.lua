-- inspect.lua tells what there is of one lock. It changes nothing.
--
-- KEYS[1]  lock hash
-- KEYS[2]  wait hash
--
-- Returns the server's time in microseconds, the PTTL of the lock, and the fields
-- and values of both hashes.

local t = redis.call('TIME')
return {t[1] * 1000000 + t[2], redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]), redis.call('HGETALL', KEYS[2])}
