-- release.lua leaves holds; with the last one it frees the lock, or hands it over to
-- whoever has waited longest.
--
-- KEYS     three for each lock, as in acquire.lua
-- ARGV[1]  ttl of the holds that stay, milliseconds
-- ARGV[2]  the longest ttl of a lock that is handed over, milliseconds
-- ARGV[3]  channels of the waiting processes: this, followed by the part of an owner
--          before the dot
-- then three for each lock:
--   owner
--   depth to leave behind; 0 frees the lock, at whatever depth it is
--   1 to give up the owner's seat as well, or 0
--
-- Returns for each lock 1 if the owner held it, 0 if nobody does, -1 if somebody else
-- does, or (of several) the text of an error.
--
-- Safe to run twice: the depth to leave behind is absolute, so a replay finds its
-- own work done, and a replay of the last one finds no owner.

local function release(lock, wait, fence, owner, leave, giveup)
  if giveup == '1' then
    redis.call('HDEL', wait, owner)
  end
  local depth = tonumber(redis.call('HGET', lock, owner) or 0)
  if depth == 0 then
    return -redis.call('EXISTS', lock)
  end
  if leave > 0 then
    if depth > leave then
      redis.call('HINCRBY', lock, owner, leave - depth)
    end
    redis.call('PEXPIRE', lock, ARGV[1])
    return 1
  end
  free(lock, wait, fence, ARGV[2], ARGV[3])
  return 1
end

if #KEYS == 3 then
  return {release(KEYS[1], KEYS[2], KEYS[3], ARGV[4], tonumber(ARGV[5]), ARGV[6])}
end
local replies = {}
for i = 0, #KEYS - 3, 3 do
  local ok, answer = pcall(release, KEYS[i + 1], KEYS[i + 2], KEYS[i + 3], ARGV[i + 4], tonumber(ARGV[i + 5]), ARGV[i + 6])
  if not ok then
    answer = type(answer) == 'table' and answer.err or tostring(answer)
  end
  replies[#replies + 1] = answer
end
return replies
