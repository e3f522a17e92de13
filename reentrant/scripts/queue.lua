-- queue.lua: the queue of those who wait for a lock.
--
-- Waiting processes have seats in a hash, one field for each: the owner that is to
-- get the lock -> "ORDER DEADLINE TTL": since when it waits and until when it is
-- believed to be alive (microseconds of the server's clock), and how long its
-- lease is to last (milliseconds).

-- head returns the owner that has waited longest, and the ttl it wants; it drops the
-- seats of those that gave no sign of life.
local function head(wait)
  local seats = call('HGETALL', wait)
  local owner, since, ttl
  for i = 1, #seats, 2 do
    local order, deadline, wanted = string.match(seats[i + 1], '^(%d+) (%d+) (%d+)$')
    if not order or tonumber(deadline) < now() then
      call('HDEL', wait, seats[i])
    elseif not owner or tonumber(order) < since then
      owner, since, ttl = seats[i], tonumber(order), tonumber(wanted)
    end
  end
  return owner, ttl
end
