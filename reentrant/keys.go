package reentrant

import (
	"strconv"
	"strings"
)

// Keys in Redis. The shard of a lock's name, in braces, puts all keys of one lock
// into one cluster slot.
//
//	PREFIX:{SHARD}:lock:NAME  hash    owner -> depth, "@fence" -> fence; lives for the TTL of the lease
//	PREFIX:{SHARD}:wait:NAME  hash    owner -> seat (scripts/queue.lua); lives as long as its longest seat
//	PREFIX:{SHARD}:fence      string  last fence given in the shard; stays (at most Config.Shards of them)
//	PREFIX:meta               hash    what all processes must agree about; stays
//	PREFIX:wake:CLIENT        channel "OWNER FENCE LOCK", to the client of that owner
type keyspace struct {
	prefix string
	wake   string // begins the channels of waiting processes
	shards []shard
}

// A shard is the part of the keys that does not depend on a name. The fence is
// also kept as an argument, made once.
type shard struct {
	tag   string
	fence string
}

// keys are those of one lock.
type keys struct {
	lock, wait string
	fence      *string
}

func newKeyspace(prefix string, shards int) *keyspace {
	k := &keyspace{prefix: prefix, wake: prefix + ":wake:", shards: make([]shard, shards)}
	for i := range k.shards {
		tag := prefix + ":{" + strconv.Itoa(i) + "}:"
		k.shards[i] = shard{tag: tag, fence: tag + "fence"}
	}
	return k
}

func (k *keyspace) shardOf(name string) *shard {
	// FNV-1a: part of the layout, since processes that disagree about the shard
	// of a name do not exclude each other.
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return &k.shards[h%uint32(len(k.shards))]
}

func (k *keyspace) of(name string) keys {
	s := k.shardOf(name)
	// Both in one string: this runs twice for each lock.
	var b strings.Builder
	n := len(s.tag) + len("lock:") + len(name)
	b.Grow(2 * n)
	b.WriteString(s.tag)
	b.WriteString("lock:")
	b.WriteString(name)
	b.WriteString(s.tag)
	b.WriteString("wait:")
	b.WriteString(name)
	return keys{lock: b.String()[:n], wait: b.String()[n:], fence: &s.fence}
}

// nameOf returns the name of the lock that has this key.
func (k *keyspace) nameOf(lock string) (string, bool) {
	rest, ok := strings.CutPrefix(lock, k.prefix+":{")
	if !ok {
		return "", false
	}
	_, name, ok := strings.Cut(rest, "}:lock:")
	return name, ok
}

func (k *keyspace) meta() string { return k.prefix + ":meta" }
