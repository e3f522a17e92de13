-- acquire.lua takes a free lock, or enters one that the owner holds already.
--
-- KEYS[1]  lock hash: field = owner, value = depth; "@fence" = number of the grant
-- KEYS[2]  fence counter of the shard
-- ARGV[1]  owner, fresh for each outermost acquire
-- ARGV[2]  wanted depth: 1 takes the lock, more enters it once more
-- ARGV[3]  ttl, milliseconds
-- ARGV[4]  the fence must be at least this, or 0
--
-- Returns {1, fence} if the owner holds the lock at the wanted depth,
--         {0, milliseconds left to the holder in the way} if it is busy,
--         {-1} if a deeper hold was wanted of a lock that the owner has lost.
--
-- Safe to run twice: the wanted depth is absolute, so a replay finds its own
-- work done. A replay of an earlier enter never lowers the depth.

local wanted = tonumber(ARGV[2])
local depth = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or 0)
if depth > 0 then
  if depth < wanted then
    redis.call('HINCRBY', KEYS[1], ARGV[1], wanted - depth)
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
  return {1, tonumber(redis.call('HGET', KEYS[1], '@fence'))}
end
if wanted > 1 then
  return {-1}
end

local hint = tonumber(ARGV[4])
local left = redis.call('PTTL', KEYS[1])
if left ~= -2 then
  -- The hint is kept though the lock is busy: whoever is granted it next must
  -- get past the fence that refused the caller.
  if hint > 0 and hint > tonumber(redis.call('GET', KEYS[2]) or 0) then
    redis.call('SET', KEYS[2], string.format('%.0f', hint))
  end
  return {0, left}
end

-- Time makes the fence grow though the counter was lost in a failover; the
-- counter makes it grow though the clock stands still or went back. Microseconds
-- since 1970 need 51 bits, and a Lua number holds 53 exactly.
local now = redis.call('TIME')
local fence = math.max(tonumber(redis.call('GET', KEYS[2]) or 0) + 1, now[1] * 1000000 + now[2], hint)
local text = string.format('%.0f', fence)
redis.call('SET', KEYS[2], text)
redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
redis.call('HSET', KEYS[1], '@fence', text)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {1, fence}
