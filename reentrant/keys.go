package reentrant

import (
	"hash/fnv"
	"strconv"
)

// Keys in Redis. The shard of a lock's name, in braces, puts all keys of one lock
// into one cluster slot.
//
//	prefix:{shard}:lock:NAME  hash    owner -> depth, "@fence" -> fence; lives for the TTL of the lease
//	prefix:{shard}:fence      string  last fence given in the shard; stays (at most Config.Shards of them)
type keyspace struct {
	prefix string
	shards uint32
}

// keys are those of one lock.
type keys struct {
	lock  string
	fence string
}

func (k keyspace) of(name string) keys {
	// FNV-1a: part of the layout, since processes that disagree about the shard
	// of a name do not exclude each other.
	h := fnv.New32a()
	h.Write([]byte(name))
	tag := k.prefix + ":{" + strconv.FormatUint(uint64(h.Sum32()%k.shards), 10) + "}:"
	return keys{lock: tag + "lock:" + name, fence: tag + "fence"}
}
