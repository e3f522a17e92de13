package reentrant

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// ErrNotHeld: nobody holds the lock, or the grant that was meant has ended.
var ErrNotHeld = errors.New("reentrant: lock is not held")

// Info is what can be seen of one lock from outside.
type Info struct {
	Name    string
	Owner   string        // its digest, as in logs and [Lease.OwnerDigest]; empty: free
	Depth   int           // how often the owner holds it
	Fence   int64         // of the grant
	Left    time.Duration // of the lease, if it is not renewed; 0: it has no end
	Since   time.Time     // of the grant, by the server's clock; zero: not known
	Waiting []Waiting     // those with a place in the queue, the first first
}

// Held reports whether somebody held the lock.
func (i *Info) Held() bool { return i.Owner != "" }

// A Waiting is a process that waits for a lock.
type Waiting struct {
	Owner string // the digest of the owner that will hold the lock
	Since time.Time
}

// An Inspector is a store that can be looked into, for people who want to know who
// holds what. [RedisStore] is one.
type Inspector interface {
	Inspect(ctx context.Context, name string) (Info, error)
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	Break(ctx context.Context, name string, fence int64) error
}

// Inspector returns the locker's store to look into, or nil if it cannot be.
func (l *Locker) Inspector() Inspector {
	i, _ := l.store.(Inspector)
	return i
}

// Inspect tells who holds the named lock and who waits for it.
func (s *RedisStore) Inspect(ctx context.Context, name string) (Info, error) {
	infos, err := s.inspect(ctx, []string{name})
	if err != nil {
		return Info{}, fmt.Errorf("inspect lock %q: %w", name, err)
	}
	return infos[0], nil
}

// List tells of all locks that are held and whose names begin with prefix, page by
// page, so that the server is never kept busy for long. A lock that comes or goes
// meanwhile may be there or not, and one may be told twice. An error ends the list.
func (s *RedisStore) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		var mu sync.Mutex // the nodes of a cluster are scanned side by side
		done := false
		scan := func(ctx context.Context, node redis.Cmdable) error {
			pattern := globEscape(s.keys.prefix) + ":{*}:lock:" + globEscape(prefix) + "*"
			for cursor := uint64(0); ; {
				keys, next, err := node.Scan(ctx, cursor, pattern, 500).Result()
				if err != nil {
					return err
				}
				var names []string
				for _, key := range keys {
					if name, ok := s.keys.nameOf(key); ok {
						names = append(names, name)
					}
				}
				infos, err := s.inspect(ctx, names)
				if err != nil {
					return err
				}
				mu.Lock()
				for _, info := range infos {
					if !done && info.Held() && !yield(info, nil) {
						done = true
					}
				}
				stop := done
				mu.Unlock()
				if cursor = next; cursor == 0 || stop {
					return nil
				}
			}
		}
		var err error
		if cluster, ok := s.rdb.(*redis.ClusterClient); ok {
			err = cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return scan(ctx, c) })
		} else {
			err = scan(ctx, s.rdb)
		}
		if err != nil && !done {
			yield(Info{}, fmt.Errorf("list locks %q: %w", prefix, err))
		}
	}
}

// Break takes the named lock away from its holder, if its fence is still the given
// one, and hands it to whoever waits. The holder finds out at its next renewal; what
// it commits until then is refused only where its fence is compared, and only once
// a newer holder has committed. So make sure that the holder has stopped, or is
// fenced, before. It returns [ErrNotHeld] if the lock has no such grant any more,
// which is also so when the client repeated a call whose reply was lost.
func (s *RedisStore) Break(ctx context.Context, name string, fence int64) error {
	k := s.keys.of(name)
	args := append(s.breakGrant.args(3, 3), &k.lock, &k.wait, k.fence)
	args = append(args, strconv.FormatInt(fence, 10), handoverMS, &s.keys.wake)
	runs := []run{{cmd: redis.NewIntSliceCmd(ctx, args...)}}
	s.exec(ctx, s.breakGrant, runs)
	answers, err := runs[0].numbers(1)
	switch {
	case err != nil:
		return fmt.Errorf("break lock %q: %w", name, err)
	case answers[0] != 1:
		return fmt.Errorf("break lock %q with fence %d: %w", name, fence, ErrNotHeld)
	}
	return nil
}

func (s *RedisStore) inspect(ctx context.Context, names []string) ([]Info, error) {
	runs := make([]run, len(names))
	for i, name := range names {
		k := s.keys.of(name)
		runs[i].cmd = redis.NewSliceCmd(ctx, append(s.look.args(2, 0), &k.lock, &k.wait)...)
	}
	if len(runs) > 0 {
		s.exec(ctx, s.look, runs)
	}
	infos := make([]Info, len(names))
	for i, name := range names {
		values, err := runs[i].values(4)
		if err != nil {
			return nil, err
		}
		if infos[i], err = decodeInfo(name, values); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

// decodeInfo reads the reply of inspect.lua: the server's time in microseconds, PTTL,
// and the fields of the lock and of the queue.
func decodeInfo(name string, values []any) (Info, error) {
	info := Info{Name: name}
	now, ok1 := values[0].(int64)
	left, ok2 := values[1].(int64)
	lock, ok3 := stringsOf(values[2])
	seats, ok4 := stringsOf(values[3])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return info, fmt.Errorf("inspect lock %q: unexpected reply %v", name, values)
	}
	info.Left = time.Duration(max(0, left)) * time.Millisecond
	for i := 0; i+1 < len(lock); i += 2 {
		n, err := strconv.ParseInt(lock[i+1], 10, 64)
		if err != nil {
			return info, fmt.Errorf("inspect lock %q: field %q is %q, must be a number", name, lock[i], lock[i+1])
		}
		if lock[i] == "@fence" {
			info.Fence = n
		} else {
			info.Owner, info.Depth = ownerDigest(lock[i]), int(n)
		}
	}
	// A fence is the time of its grant, unless the counter or a hint was ahead.
	if info.Fence > 0 && info.Fence <= now {
		info.Since = time.UnixMicro(info.Fence)
	}
	for i := 0; i+1 < len(seats); i += 2 {
		parts := strings.Fields(seats[i+1])
		if len(parts) != 3 {
			continue
		}
		since, err1 := strconv.ParseInt(parts[0], 10, 64)
		deadline, err2 := strconv.ParseInt(parts[1], 10, 64)
		if err1 == nil && err2 == nil && deadline >= now {
			info.Waiting = append(info.Waiting, Waiting{Owner: ownerDigest(seats[i]), Since: time.UnixMicro(since)})
		}
	}
	slices.SortFunc(info.Waiting, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	return info, nil
}

func stringsOf(v any) ([]string, bool) {
	values, ok := v.([]any)
	all := make([]string, len(values))
	for i, v := range values {
		if all[i], ok = v.(string); !ok {
			return nil, false
		}
	}
	return all, ok
}

// globEscape makes s match only itself in a pattern of Redis.
func globEscape(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(s)
}
