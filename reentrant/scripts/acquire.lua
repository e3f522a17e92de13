-- acquire.lua takes free locks, or enters ones that their owners hold already.
--
-- KEYS, three for each lock:
--   lock hash: field = owner, value = depth; "@fence" = number of the grant
--   wait hash: see queue.lua
--   fence counter of the shard
-- ARGV[1]  ttl, milliseconds
-- ARGV[2]  how long a seat in the queue is kept, milliseconds; 0: does not wait
-- then three for each lock:
--   owner, fresh for each outermost acquire
--   wanted depth: 1 takes the lock, more enters it once more
--   the fence must be at least this, or 0
--
-- Returns two values for each lock:
--   1, fence                   the owner holds it at the wanted depth
--   0, milliseconds            it is busy; what the holder in the way has left, or 0
--   -1, 0                      a deeper hold was wanted of a lock that the owner has lost
--   -2, error                  (of several) this one could not be asked
--
-- Safe to run twice: the wanted depth is absolute, so a replay finds its own
-- work done. A replay of an earlier enter never lowers the depth. An owner that
-- was handed the lock while it waited finds out in the same way.

local ttl, keep = ARGV[1], tonumber(ARGV[2])

local function acquire(lock, wait, fence, owner, wanted, hint)
  local left = redis.call('PTTL', lock)
  if left ~= -2 then
    local depth = tonumber(redis.call('HGET', lock, owner) or 0)
    if depth > 0 then
      if depth < wanted then
        redis.call('HINCRBY', lock, owner, wanted - depth)
      end
      redis.call('PEXPIRE', lock, ttl)
      return 1, tonumber(redis.call('HGET', lock, '@fence'))
    end
  end
  if wanted > 1 then
    return -1, 0
  end
  if left == -2 then
    -- Nobody jumps the queue.
    local first = head(wait)
    if not first or first == owner then
      if first then
        redis.call('HDEL', wait, owner)
      end
      return 1, grant(lock, fence, owner, ttl, hint)
    end
    left = 0
  end
  -- The hint is kept though the lock is busy: whoever is granted it next must get
  -- past the fence that refused the caller.
  if hint > 0 and hint > tonumber(redis.call('GET', fence) or 0) then
    redis.call('SET', fence, string.format('%.0f', hint))
  end
  if keep > 0 then
    local seat = redis.call('HGET', wait, owner)
    local since = seat and string.match(seat, '^%d+') or string.format('%.0f', now())
    redis.call('HSET', wait, owner, since .. string.format(' %.0f ', now() + keep * 1000) .. ttl)
    if redis.call('PTTL', wait) < keep then
      redis.call('PEXPIRE', wait, keep)
    end
  end
  return 0, math.max(left, 0)
end

if #KEYS == 3 then
  return {acquire(KEYS[1], KEYS[2], KEYS[3], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]))}
end
local replies = {}
for i = 0, #KEYS - 3, 3 do
  -- An error of one lock is not one of its neighbours.
  local ok, answer, value = pcall(acquire, KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], ARGV[i + 3], tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5]))
  if not ok then
    answer, value = -2, type(answer) == 'table' and answer.err or tostring(answer)
  end
  replies[#replies + 1] = answer
  replies[#replies + 1] = value
end
return replies
