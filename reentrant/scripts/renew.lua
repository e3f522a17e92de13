-- renew.lua makes a lease last for another ttl.
--
-- KEYS[1]  lock hash
-- ARGV[1]  owner
-- ARGV[2]  fence of the grant that is renewed: a late copy of an acquire may
--          have granted the lock to the same owner anew
-- ARGV[3]  ttl, milliseconds
--
-- Returns 1 if renewed, 0 if nobody holds the lock, -1 if somebody else does.

local held = redis.call('HMGET', KEYS[1], ARGV[1], '@fence')
if held[1] and held[2] == ARGV[2] then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return 1
end
return -redis.call('EXISTS', KEYS[1])
