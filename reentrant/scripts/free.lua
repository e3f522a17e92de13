-- free.lua: how a hold ends.

-- free ends a hold, and hands the lock to whoever has waited longest. It has its new
-- owner and fence before anybody is told, and a ttl of at most longest: the
-- message "OWNER FENCE LOCK" may get lost, and the waiting process may be dead.
local function free(lock, wait, fence, longest, channels)
  call('DEL', lock)
  local first, ttl = head(wait)
  if first then
    call('HDEL', wait, first)
    local _, text = grant(lock, fence, first, math.min(ttl, tonumber(longest)), '0')
    -- Lack of rights to the channel must not make a release fail.
    redis.pcall('PUBLISH', channels .. string.match(first, '^[^.]*'), first .. ' ' .. text .. ' ' .. lock)
  end
end
