-- queue.lua: what acquire and release share. It stands before each of them.
--
-- Waiting processes have seats in a hash, one field for each: the owner that is to
-- get the lock -> "ORDER DEADLINE TTL": since when it waits and until when it is
-- believed to be alive (microseconds of the server's clock), and how long its
-- lease is to last (milliseconds).

local clock
-- now returns the server's clock in microseconds, the same for the whole call.
-- Microseconds since 1970 need 51 bits, and a Lua number holds 53 exactly.
local function now()
  if not clock then
    local t = redis.call('TIME')
    clock = t[1] * 1000000 + t[2]
  end
  return clock
end

-- head returns the owner that has waited longest, and the ttl it wants; it drops the
-- seats of those that gave no sign of life.
local function head(wait)
  local seats = redis.call('HGETALL', wait)
  local owner, since, ttl
  for i = 1, #seats, 2 do
    local order, deadline, wanted = string.match(seats[i + 1], '^(%d+) (%d+) (%d+)$')
    if not order or tonumber(deadline) < now() then
      redis.call('HDEL', wait, seats[i])
    elseif not owner or tonumber(order) < since then
      owner, since, ttl = seats[i], tonumber(order), tonumber(wanted)
    end
  end
  return owner, ttl
end

-- grant gives a free lock to an owner and returns the fence of the grant. Time
-- makes the fence grow though the counter was lost in a failover; the counter
-- makes it grow though the clock stands still or went back.
local function grant(lock, fence, owner, ttl, hint)
  local f = math.max(tonumber(redis.call('GET', fence) or 0) + 1, now(), hint)
  local text = string.format('%.0f', f)
  redis.call('SET', fence, text)
  redis.call('HSET', lock, owner, 1, '@fence', text)
  local lasts = redis.pcall('PEXPIRE', lock, ttl)
  if lasts ~= 1 then -- not allowed to: better no lock than one without an end
    redis.call('DEL', lock)
    error(type(lasts) == 'table' and lasts.err or 'no ttl')
  end
  return f
end

-- free ends a hold, and hands the lock to whoever has waited longest. It has its new
-- owner and fence before anybody is told, and a ttl of at most longest: the
-- message "OWNER LOCK" may get lost, and the waiting process may be dead.
local function free(lock, wait, fence, longest, channels)
  redis.call('DEL', lock)
  local first, ttl = head(wait)
  if first then
    redis.call('HDEL', wait, first)
    grant(lock, fence, first, math.min(ttl, tonumber(longest)), 0)
    -- Lack of rights to the channel must not make a release fail.
    redis.pcall('PUBLISH', channels .. string.match(first, '^[^.]*'), first .. ' ' .. lock)
  end
end
