-- agree.lua lets all processes under one prefix agree on how they lock.
--
-- KEYS[1]  meta hash
-- ARGV[1]  version of the layout
-- ARGV[2]  number of shards
--
-- Returns the two that hold, which are the given ones if there were none.

redis.call('HSETNX', KEYS[1], 'layout', ARGV[1])
redis.call('HSETNX', KEYS[1], 'shards', ARGV[2])
return redis.call('HMGET', KEYS[1], 'layout', 'shards')
