-- release.lua leaves holds; with the last one it frees the lock, or hands it over to
-- whoever has waited longest.
--
-- KEYS     as in acquire.lua
-- ARGV[1]  ttl of the holds that stay, milliseconds
-- ARGV[2]  the longest ttl of a lock that is handed over, milliseconds
-- ARGV[3]  channels of the waiting processes: this, followed by the part of an owner
--          before the dot
-- ARGV[4]  depth to leave behind; 0 frees the lock, at whatever depth it is
-- ARGV[5]  1 to give up the owner's seat as well, or 0
-- ARGV[6]  and so on: the owner for each lock
--
-- Returns for each lock 1 if the owner held it, 0 if nobody does, -1 if somebody else
-- does, or -2 (of several) if this one failed: asked about alone, it says why.
--
-- Safe to run twice: the depth to leave behind is absolute, so a replay finds its
-- own work done, and a replay of the last one finds no owner.

local call = redis.call
local ttl, leave, giveup = ARGV[1], ARGV[4], ARGV[5]
local n = #KEYS / 3

-- Nearly always nobody waits: see acquire.lua.
local quiet = call('EXISTS', unpack(KEYS, n + 1, 2 * n)) == 0
if quiet and n == 1 and leave == '0' and call('HGET', KEYS[1], ARGV[6]) then
  call('DEL', KEYS[1])
  return {1}
end

-- include grant.lua
-- include queue.lua
-- include free.lua

local function release(i)
  local lock, wait, fence, owner = KEYS[i], KEYS[n + i], KEYS[2 * n + i], ARGV[5 + i]
  if giveup == '1' then
    call('HDEL', wait, owner)
  end
  local depth = call('HGET', lock, owner)
  if not depth then
    return -call('EXISTS', lock)
  end
  if leave ~= '0' then
    if tonumber(depth) > tonumber(leave) then
      call('HINCRBY', lock, owner, leave - depth)
    end
    call('PEXPIRE', lock, ttl)
    return 1
  end
  if quiet then
    call('DEL', lock)
  else
    free(lock, wait, fence, ARGV[2], ARGV[3])
  end
  return 1
end

if n == 1 then
  return {release(1)}
end
local replies, i = {}, 0
local function serve()
  while i < n do
    i = i + 1
    replies[i] = release(i)
  end
end
while not pcall(serve) do
  replies[i] = -2
end
return replies
