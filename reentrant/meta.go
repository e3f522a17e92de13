package reentrant

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// layout is the version of keys, fields and scripts. It changes with everything that
// would keep a process of the old version and one of the new from excluding each
// other, or from handing a lock over.
const layout = 1

// A DisagreementError says that other processes lock under the same prefix in a way
// that this one could not exclude. Nothing was locked.
type DisagreementError struct {
	Prefix string
	What   string // "shards" or "layout"
	Theirs int
	Ours   int
}

func (e *DisagreementError) Error() string {
	advice := "use the same Config.Shards everywhere, or another Config.Prefix"
	if e.What == "layout" {
		advice = "stop all processes of the other version first, then remove the key, or use another Config.Prefix"
	}
	return fmt.Sprintf("reentrant: locks under prefix %q have %s %d, this process has %d: %s (they agree in key %s:meta)",
		e.Prefix, e.What, e.Theirs, e.Ours, advice, e.Prefix)
}

// An agreer is a store whose users must agree on something first.
type agreer interface {
	Agree(ctx context.Context) error
}

// Check asks the store whether this locker and those of other processes exclude
// each other, and returns a [*DisagreementError] if not. The first Acquire does so
// too; Check lets an application find out when it starts.
func (l *Locker) Check(ctx context.Context) error { return l.agree(ctx) }

func (l *Locker) agree(ctx context.Context) error {
	if l.agreed.Load() {
		return nil
	}
	s, ok := l.store.(agreer)
	if !ok {
		l.agreed.Store(true)
		return nil
	}
	err := s.Agree(ctx)
	if err == nil {
		l.agreed.Store(true)
	}
	return err
}

// Agree writes down, in the first process under a prefix, what all others must
// have the same, and compares in those. What the key holds is of no use after all
// processes have ended: it may be removed then, and not before. A process that
// starts after it was lost writes its own, and those that run do not look again.
func (s *RedisStore) Agree(ctx context.Context) error {
	key, ours := s.keys.meta(), []int{layout, len(s.keys.shards)}
	args := append(s.agree.args(1, 2), &key, ours[0], ours[1])
	runs := []run{{cmd: redis.NewSliceCmd(ctx, args...)}}
	s.exec(ctx, s.agree, runs)
	values, err := runs[0].values(2)
	if err != nil {
		return fmt.Errorf("reentrant: compare with other processes in key %s: %w", key, err)
	}
	for i, what := range []string{"layout", "shards"} {
		text, _ := values[i].(string)
		theirs, err := strconv.Atoi(text)
		if err != nil {
			return errors.New("reentrant: key " + key + " does not belong to this library: its " + what + " is " + strconv.Quote(text))
		}
		if theirs != ours[i] {
			return &DisagreementError{Prefix: s.keys.prefix, What: what, Theirs: theirs, Ours: ours[i]}
		}
	}
	return nil
}
