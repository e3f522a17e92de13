-- renew.lua makes leases last for another ttl.
--
-- KEYS     lock hashes
-- ARGV[1]  ttl, milliseconds
-- then two for each lock:
--   owner
--   fence of the grant that is renewed: a late copy of an acquire may have granted
--   the lock to the same owner anew
--
-- Returns for each lock 1 if renewed, 0 if nobody holds it, -1 if somebody else
-- does, or -2 (of several) if this one failed: asked about alone, it says why.

local function renew(lock, owner, fence)
  local held = redis.call('HMGET', lock, owner, '@fence')
  if held[1] and held[2] == fence then
    redis.call('PEXPIRE', lock, ARGV[1])
    return 1
  end
  return -redis.call('EXISTS', lock)
end

if #KEYS == 1 then
  return {renew(KEYS[1], ARGV[2], ARGV[3])}
end
local replies, i = {}, 0
local function serve()
  while i < #KEYS do
    i = i + 1
    replies[i] = renew(KEYS[i], ARGV[2 * i], ARGV[2 * i + 1])
  end
end
while not pcall(serve) do -- an error of one lock is not one of its neighbours
  replies[i] = -2
end
return replies
