-- grant.lua: how a free lock is given to an owner.

local call = redis.call

local clock, clockText
-- now returns the server's clock in microseconds, the same for the whole call, and sets
-- clockText to its digits. Microseconds since 1970 need 51 bits, and a Lua number holds
-- 53 exactly.
local function now()
  if not clock then
    local t = call('TIME')
    clockText = t[1] .. string.sub('00000' .. t[2], -6)
    clock = tonumber(clockText)
  end
  return clock
end

-- grant gives a free lock to an owner and returns the fence of the grant, also as text;
-- it is at least hint. Time makes the fence grow though the counter was lost in a failover; the
-- counter makes it grow though the clock stands still or went back.
local function grant(lock, fence, owner, ttl, hint)
  local f = now()
  local text = clockText
  local last = call('SET', fence, text, 'GET')
  -- As texts: fences of our time all have 16 digits, and those that have fewer and
  -- come out as higher are compared again.
  if hint ~= '0' or last and last >= text then
    f = math.max((tonumber(last) or 0) + 1, f, tonumber(hint)) -- or 0: somebody else wrote there
    text = string.format('%.0f', f)
    call('SET', fence, text)
  end
  call('HSET', lock, owner, '1', '@fence', text)
  local lasts = redis.pcall('PEXPIRE', lock, ttl)
  if lasts ~= 1 then -- not allowed to: better no lock than one without an end
    call('DEL', lock)
    error(type(lasts) == 'table' and lasts.err or 'no ttl')
  end
  return f, text
end
