package reentrant_test

import (
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/onceward/internal/devstack/devtest"
	"github.com/onceward/onceward/internal/devstack/redistest"
	"github.com/onceward/onceward/reentrant"
	"github.com/redis/go-redis/v9"
)

// scripted is what can be told from outside of a script run.
type scripted struct {
	script  string // acquire, renew or release
	takes   int    // outermost holds, and questions of those that wait
	enters  int
	leaves  int // that leave something behind
	frees   int
	renews  int
	waiting []string // keys of the queues of what is freed
}

// scriptNames learns from whole scripts which digest is which.
type scriptNames struct{ names sync.Map }

// read takes a command apart. It is not ok if that is no run of a lock's script.
func (n *scriptNames) read(args []string) (s scripted, ok bool) {
	switch args[0] {
	case "eval":
		sum := sha1.Sum([]byte(args[1]))
		for _, name := range []string{"acquire", "renew", "release"} {
			if strings.Contains(args[1], "-- "+name+".lua") {
				s.script = name
				n.names.Store(hex.EncodeToString(sum[:]), name)
			}
		}
	case "evalsha":
		if name, ok := n.names.Load(args[1]); ok {
			s.script = name.(string)
		}
	}
	if s.script == "" {
		return s, false
	}
	count, _ := strconv.Atoi(args[2])
	keys, argv := args[3:3+count], args[3+count:]
	switch s.script {
	case "acquire":
		if n := count / 3; argv[2] == "1" {
			s.takes = n
		} else {
			s.enters = n
		}
	case "renew":
		s.renews = count
	case "release":
		if n := count / 3; argv[3] == "0" {
			s.frees, s.waiting = n, keys[n:2*n]
		} else {
			s.leaves = n
		}
	}
	return s, true
}

// faults counts what the network did.
type faults struct {
	dropped, late         atomic.Int64 // script runs
	takes, enters, leaves atomic.Int64 // with a fault
	frees, handovers      atomic.Int64
	renews                atomic.Int64
}

func (f *faults) String() string {
	return fmt.Sprintf("%d replies dropped and %d requests late: %d acquires, %d enters, %d leaves, %d releases (%d while somebody waited), %d renewals",
		f.dropped.Load(), f.late.Load(), f.takes.Load(), f.enters.Load(), f.leaves.Load(), f.frees.Load(), f.handovers.Load(), f.renews.Load())
}

// cycles is how often a lock is taken and given back in each of the two tests below; on
// a machine that has better things to do, what it manages in that time.
const (
	cycles    = 5_040 // a multiple of the workers
	cyclesFor = 25 * time.Second
)

// The client repeats what got no answer: nobody but it sees the faults, and nothing is
// left of them.
func TestReplays_ClientRetries(t *testing.T) {
	t.Parallel()
	// So long a TTL that no lease is lost because this machine is busy.
	r := newReplays(t, 12*time.Second, func(o *redis.Options) {
		o.MaxRetries, o.MinRetryBackoff, o.MaxRetryBackoff = 20, time.Millisecond, 5*time.Millisecond
	})
	r.late = func(s scripted) bool { return s.takes == 0 } // a late take may be a hold of nobody
	r.renewals = 50                                        // they are rare
	r.run()
	if r.unknown.Load() > 0 {
		t.Errorf("%d calls failed", r.unknown.Load())
	}
	if got, want := r.granted.Load()+r.tooLate.Load(), r.begun.Load(); got != want {
		t.Errorf("%d grants in %d cycles", got, want)
	}
	for _, key := range r.left() {
		t.Errorf("left in Redis: %s", key)
	}
}

// The client gives up: outcomes are not known, and what may have been granted is
// withdrawn, or ends by itself.
func TestReplays_NoRetries(t *testing.T) {
	t.Parallel()
	r := newReplays(t, time.Second, func(o *redis.Options) { o.MaxRetries = -1 })
	r.late = func(scripted) bool { return rand.IntN(10) == 0 } // each may cost a TTL
	r.renewals = 5
	// Now and then all connections break, those that bring news as well.
	cut, cutting := time.NewTicker(500*time.Millisecond), make(chan struct{})
	go func() {
		for {
			select {
			case <-cut.C:
				r.proxy.Cut()
			case <-cutting:
				return
			}
		}
	}()
	r.run()
	cut.Stop()
	close(cutting)
	if r.unknown.Load() == 0 {
		t.Error("no call failed: the network was too good")
	}
	longest := max(r.ttl, reentrant.HandoverTTL)
	for _, key := range r.left() {
		if ttl := r.rdb.PTTL(t.Context(), key).Val(); ttl == -1 || ttl > longest {
			t.Errorf("left in Redis: %s with TTL %v, want at most %v", key, ttl, longest)
		}
	}
	until(t, "all of it has ended", func() error {
		if keys := r.left(); len(keys) > 0 {
			return fmt.Errorf("left in Redis: %v", keys)
		}
		return nil
	})
}

const (
	replayNames = 60
	processes   = 3 // lockers, each with a client of its own
)

// replays are workers that lock through a network that loses what it can.
type replays struct {
	t       *testing.T
	ttl     time.Duration
	rdb     *redis.Client // past the proxy
	proxy   *redistest.Proxy
	lockers []*reentrant.Locker
	seed    uint64
	late    func(scripted) bool // whether a request may be late

	renewals int // how many in a hundred have a fault

	faults  faults
	begun   atomic.Int64 // cycles
	granted atomic.Int64
	tooLate atomic.Int64 // grants that could not be used any more
	lost    atomic.Int64
	unknown atomic.Int64

	guards [replayNames]atomic.Pointer[reentrant.Lease] // the holder
	fences [replayNames]atomic.Int64
}

func newReplays(t *testing.T, ttl time.Duration, change func(*redis.Options)) *replays {
	server := devtest.OwnRedis(t)
	r := &replays{t: t, ttl: ttl, rdb: server.Client(), seed: rand.Uint64()}
	t.Logf("seed %d", r.seed)
	var mu sync.Mutex
	rng := rand.New(rand.NewPCG(r.seed, 0))
	chance := func(percent int) bool {
		mu.Lock()
		defer mu.Unlock()
		return rng.IntN(100) < percent
	}
	scripts := &scriptNames{}
	r.proxy = redistest.NewProxy(t, server.Addr, func(args []string) (f redistest.Fault) {
		s, ok := scripts.read(args)
		switch {
		case !ok, s.renews == 0 && !chance(3), s.renews > 0 && !chance(r.renewals):
			return f
		case chance(25) && r.late(s):
			r.faults.late.Add(1)
			f.Late = time.Duration(1+rand.IntN(30)) * time.Millisecond
		default:
			r.faults.dropped.Add(1)
			f.Drop = true
		}
		r.faults.takes.Add(int64(s.takes))
		r.faults.enters.Add(int64(s.enters))
		r.faults.leaves.Add(int64(s.leaves))
		r.faults.frees.Add(int64(s.frees))
		r.faults.renews.Add(int64(s.renews))
		for _, key := range s.waiting {
			if r.rdb.Exists(t.Context(), key).Val() > 0 {
				r.faults.handovers.Add(1)
			}
		}
		return f
	})
	for range processes {
		opts := &redis.Options{Addr: r.proxy.Addr}
		change(opts)
		rdb := redis.NewClient(opts)
		t.Cleanup(func() { rdb.Close() })
		l, err := reentrant.New(rdb, reentrant.Config{Prefix: "p", TTL: ttl, Shards: 4, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		r.lockers = append(r.lockers, l)
	}
	return r
}

// run makes all cycles, each process with a worker for each lock, then closes the lockers
// and the network.
func (r *replays) run() {
	start := time.Now()
	var wg sync.WaitGroup
	for n := range replayNames {
		for i, l := range r.lockers {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(r.seed, uint64(1+n*processes+i)))
				for c := range cycles / replayNames / processes {
					if time.Since(start) > cyclesFor {
						return
					}
					r.begun.Add(1)
					r.cycle(l, n, rng, i == 0 && c == n/3 && n%3 == 0)
				}
			})
		}
	}
	wg.Wait()
	for _, l := range r.lockers {
		l.Close()
	}
	r.proxy.Close()
	r.t.Logf("%d cycles, %d grants in %v, %d leases lost, %d calls without an answer; %v", r.begun.Load(), r.granted.Load(), time.Since(start).Round(time.Millisecond), r.lost.Load(), r.unknown.Load(), &r.faults)
	for what, n := range map[string]int64{
		"acquires": r.faults.takes.Load(), "enters": r.faults.enters.Load(), "leaves": r.faults.leaves.Load(),
		"releases": r.faults.frees.Load(), "hand-overs": r.faults.handovers.Load(), "renewals": r.faults.renews.Load(),
	} {
		if n == 0 {
			r.t.Errorf("no %s with a fault: the test shows nothing about them", what)
		}
	}
}

// cycle takes a lock, enters it up to five deep, and gives all of it back.
func (r *replays) cycle(l *reentrant.Locker, n int, rng *rand.Rand, hold bool) {
	name := fmt.Sprint("order:", n)
	outer, err := l.Acquire(r.t.Context(), name)
	if err != nil {
		if errors.Is(err, reentrant.ErrLost) {
			r.tooLate.Add(1)
		}
		r.failed(err)
		return
	}
	r.granted.Add(1)
	// A lease that has time left is the only one that has.
	if other := r.guards[n].Load(); other != nil && other.Remaining() > 0 && outer.Remaining() > 0 {
		r.t.Errorf("two holders of %s: fence %d and fence %d", name, other.Fence(), outer.Fence())
	}
	r.guards[n].Store(outer)
	if last := r.fences[n].Swap(outer.Fence()); last >= outer.Fence() {
		r.t.Errorf("fence of %s = %d after %d, must grow", name, outer.Fence(), last)
	}
	leases := []*reentrant.Lease{outer}
	for range rng.IntN(5) {
		inner, err := l.Acquire(leases[len(leases)-1].Context(), name)
		if err != nil {
			r.failed(err)
			continue
		}
		if inner.Fence() != outer.Fence() {
			r.t.Errorf("fence of a re-entry of %s = %d, want %d", name, inner.Fence(), outer.Fence())
		}
		leases = append(leases, inner)
	}
	if hold {
		select {
		case <-outer.Context().Done():
		case <-time.After(r.ttl / 2): // long enough for a renewal
		}
	}
	if other := r.guards[n].Load(); other != outer && outer.Remaining() > 0 {
		r.t.Errorf("%s was granted with fence %d to another while its holder had %v left", name, other.Fence(), outer.Remaining())
	}
	rng.Shuffle(len(leases), func(i, j int) { leases[i], leases[j] = leases[j], leases[i] })
	for i, lease := range leases {
		if i == len(leases)-1 {
			r.guards[n].CompareAndSwap(outer, nil)
		}
		if err := lease.Release(r.t.Context()); err != nil {
			r.failed(err)
		}
	}
}

func (r *replays) failed(err error) {
	switch {
	case errors.Is(err, reentrant.ErrLost):
		r.lost.Add(1)
	case errors.Is(err, reentrant.ErrReleased), errors.Is(err, reentrant.ErrBusy), errors.Is(err, reentrant.ErrClosed):
		r.t.Errorf("unexpected: %v", err)
	default:
		r.unknown.Add(1)
	}
}

// left returns the keys of locks and queues that are there.
func (r *replays) left() []string {
	r.t.Helper()
	var keys []string
	all, err := r.rdb.Keys(r.t.Context(), "*").Result()
	if err != nil {
		r.t.Fatal(err)
	}
	fences := 0
	for _, key := range all {
		switch {
		case key == "p:meta":
		case strings.HasSuffix(key, ":fence"):
			fences++
		default:
			keys = append(keys, key)
		}
	}
	if fences == 0 || fences > 4 {
		r.t.Errorf("%d fence counters, want one for each of 4 shards", fences)
	}
	return keys
}

// The release of a hold is under way for so long that the lock is somebody else's when it
// arrives.
func TestRelease_Late(t *testing.T) {
	t.Parallel()
	server := devtest.OwnRedis(t)
	proxy := redistest.NewProxy(t, server.Addr, nil)
	rdb := redis.NewClient(&redis.Options{Addr: proxy.Addr, MaxRetries: -1, ReadTimeout: 200 * time.Millisecond})
	t.Cleanup(func() { rdb.Close() })
	l, other := lockerOn(t, rdb, reentrant.Config{Prefix: "p"}), lockerOn(t, server.Client(), reentrant.Config{Prefix: "p"})
	release(t, acquire(t, l, t.Context(), "a")) // the server knows the scripts
	old := acquire(t, l, t.Context(), "a", reentrant.FixedLease(300*time.Millisecond))
	proxy.Hold()
	if err := old.Release(t.Context()); err == nil || errors.Is(err, reentrant.ErrLost) {
		t.Fatalf("Release without an answer = %v, want an unknown outcome", err)
	}
	newer := acquire(t, other, t.Context(), "a") // waits for the end of the old one
	inner := acquire(t, other, newer.Context(), "a")
	stats := server.Client()
	runs := func() (n int) {
		_, after, _ := strings.Cut(stats.Info(t.Context(), "commandstats").Val(), "cmdstat_evalsha:calls=")
		fmt.Sscan(after, &n)
		return n
	}
	before := runs()
	proxy.Release()
	until(t, "the late release has arrived", func() error {
		if n := runs(); n == before {
			return fmt.Errorf("%d runs of scripts", n)
		}
		return nil
	})
	_, hash := soleLock(t, stats, "p")
	if got := depthOf(t, hash); got != "2" || hash["@fence"] != strconv.FormatInt(newer.Fence(), 10) {
		t.Errorf("after the late release: %v, want depth 2 and fence %d", hash, newer.Fence())
	}
	release(t, inner)
	release(t, newer)
}
