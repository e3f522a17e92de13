-- break.lua takes a lock from its holder, and hands it over as a release does.
--
-- KEYS     as in release.lua, for one lock
-- ARGV[1]  fence of the grant that is meant
-- ARGV[2]  the longest ttl of a lock that is handed over, milliseconds
-- ARGV[3]  channels of the waiting processes
--
-- Returns 1 if that grant was there, else 0.

-- include grant.lua
-- include queue.lua
-- include free.lua

if redis.call('HGET', KEYS[1], '@fence') ~= ARGV[1] then
  return {0}
end
free(KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3])
return {1}
