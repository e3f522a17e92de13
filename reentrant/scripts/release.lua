-- release.lua leaves a hold, and frees the lock with the last one.
--
-- KEYS[1]  lock hash
-- ARGV[1]  owner
-- ARGV[2]  depth to leave behind; 0 frees the lock, at whatever depth it is
-- ARGV[3]  ttl of the holds that stay, milliseconds
--
-- Returns 1 if the owner held the lock, 0 if nobody does, -1 if somebody else does.
--
-- Safe to run twice: the depth to leave behind is absolute, so a replay finds
-- its own work done (and a replay of the last one finds no owner).

local depth = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
if depth == 0 then
  return -redis.call('EXISTS', KEYS[1])
end
local leave = tonumber(ARGV[2])
if leave == 0 then
  redis.call('DEL', KEYS[1])
  return 1
end
if depth > leave then
  redis.call('HINCRBY', KEYS[1], ARGV[1], leave - depth)
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
