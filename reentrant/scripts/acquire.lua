-- acquire.lua takes free locks, or enters ones that their owners hold already.
--
-- KEYS     first of all locks, then of all, then of all:
--   lock hash: field = owner, value = depth; "@fence" = number of the grant
--   wait hash: see queue.lua
--   fence counter of the shard
-- ARGV[1]  ttl, milliseconds
-- ARGV[2]  how long a seat in the queue is kept, milliseconds; 0: does not wait
-- ARGV[3]  wanted depth: 1 takes the lock, more enters it once more
-- ARGV[4]  the fence must be at least this, or 0
-- ARGV[5]  and so on: the owner for each lock, fresh for each outermost acquire
--
-- Returns three numbers for each lock:
--   1, fence, 0                the owner holds it at the wanted depth
--   0, fence, milliseconds     it is busy; if a seat was taken, no grant so far has a higher
--                              fence; what the holder in the way has left, or 0
--   -1, 0, 0                   a deeper hold was wanted of a lock that the owner has lost
--   -2, 0, 0                   (of several) this one failed: asked about alone, it says why
--
-- Safe to run twice: the wanted depth is absolute, so a replay finds its own
-- work done. A replay of an earlier enter never lowers the depth. An owner that
-- was handed the lock while it waited finds out in the same way.

-- include grant.lua

local ttl, keep, wanted, hint = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local n = #KEYS / 3

-- Nearly always the locks are free and nobody waits. For one lock that is all: the
-- functions below are not even made, since Redis makes them anew for each call.
local free = wanted == '1' and call('EXISTS', unpack(KEYS, 1, 2 * n)) == 0
if free and n == 1 then
  return {1, (grant(KEYS[1], KEYS[3], ARGV[5], ttl, hint)), 0}
end

-- include queue.lua

local taken = {} -- by this call: a lock may be asked for twice

local function acquire(i)
  local lock, wait, fence, owner = KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[4 + i]
  if free and not taken[lock] then
    taken[lock] = true
    return 1, (grant(lock, fence, owner, ttl, hint))
  end
  local left = call('PTTL', lock)
  if left ~= -2 then
    local depth = tonumber(call('HGET', lock, owner) or 0)
    if depth > 0 then
      if depth < tonumber(wanted) then
        call('HINCRBY', lock, owner, wanted - depth)
      end
      call('PEXPIRE', lock, ttl)
      return 1, tonumber(call('HGET', lock, '@fence'))
    end
  end
  if wanted ~= '1' then
    return -1, 0
  end
  if left == -2 then
    -- Nobody jumps the queue.
    local first = head(wait)
    if not first or first == owner then
      if first then
        call('HDEL', wait, owner)
      end
      return 1, (grant(lock, fence, owner, ttl, hint))
    end
    left = 0
  end
  -- The hint is kept though the lock is busy: whoever is granted it next must get
  -- past the fence that refused the caller.
  if tonumber(hint) > (tonumber(call('GET', fence) or 0) or 0) then
    call('SET', fence, hint)
  end
  local latest = 0
  if keep ~= '0' then
    latest = math.max(tonumber(call('GET', fence) or 0), now())
    local seat = call('HGET', wait, owner)
    local since = seat and string.match(seat, '^%d+') or string.format('%.0f', now())
    call('HSET', wait, owner, since .. string.format(' %.0f ', now() + keep * 1000) .. ttl)
    if call('PTTL', wait) < tonumber(keep) then
      call('PEXPIRE', wait, keep)
    end
  end
  return 0, latest, math.max(left, 0)
end

if n == 1 then
  local answer, value, left = acquire(1)
  return {answer, value, left or 0}
end
local replies, i = {}, 0
local function serve()
  while i < n do
    i = i + 1
    local answer, value, left = acquire(i)
    replies[3 * i - 2], replies[3 * i - 1], replies[3 * i] = answer, value, left or 0
  end
end
while not pcall(serve) do -- an error of one lock is not one of its neighbours
  replies[3 * i - 2], replies[3 * i - 1], replies[3 * i] = -2, 0, 0
end
return replies
