package service

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/onceward/onceward/reentrant"
)

// A notebook is a publisher that keeps what it was told.
type notebook struct {
	ids []string
	err error
}

func (n *notebook) Publish(_ context.Context, events []Event) error {
	for _, e := range events {
		n.ids = append(n.ids, e.ID())
	}
	return n.err
}

func scanner(t *testing.T, hooks Hooks) (*Scanner, *notebook) {
	t.Helper()
	n := &notebook{}
	return NewScanner(good().withDefaults(), migrated(t), newLocker(t), n, hooks, quiet), n
}

func TestScan_AnnouncesOverdueOnce(t *testing.T) {
	s, n := scanner(t, Hooks{})
	place(t, s.db, 1, 2, 3, 4)
	s.db.MustExec(`UPDATE orders SET state = 'paid' WHERE id = 3`)
	s.db.MustExec(`UPDATE orders SET deadline = now() + interval '1 hour' WHERE id = 4`)
	for i, want := range []int{2, 0} {
		if got, err := s.Scan(t.Context()); got != want || err != nil {
			t.Errorf("round %d announced %d (%v), want %d", i+1, got, err, want)
		}
	}
	if want := []string{"timeout:1:7", "timeout:2:7"}; !slices.Equal(n.ids, want) {
		t.Errorf("told %v, want %v", n.ids, want)
	}
}

func TestScan_Limit(t *testing.T) {
	s, n := scanner(t, Hooks{})
	s.limit = 2
	place(t, s.db, 1, 2, 3)
	for i, want := range []int{2, 1, 0} {
		if got, err := s.Scan(t.Context()); got != want || err != nil {
			t.Errorf("round %d announced %d (%v), want %d", i+1, got, err, want)
		}
	}
	if len(n.ids) != 3 {
		t.Errorf("told %v, want three events", n.ids)
	}
}

// The step that marks takes the lock of the job again: same owner, same fence.
func TestScan_MarksUnderTheSameLock(t *testing.T) {
	var inner []*reentrant.Lease
	var s *Scanner
	s, _ = scanner(t, Hooks{Marking: func(ctx context.Context, _ []Event) error {
		lease, ok := reentrant.FromContext(ctx, ScanLock)
		if !ok {
			return errors.New("no lease")
		}
		inner = append(inner, lease)
		// Nobody else gets in between.
		if _, err := s.locker.Acquire(context.Background(), ScanLock, reentrant.WaitAtMost(0)); !errors.Is(err, reentrant.ErrBusy) {
			return errors.New("the lock is free")
		}
		return nil
	}})
	place(t, s.db, 1)
	if _, err := s.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(inner) != 1 || inner[0].Fence() == 0 {
		t.Fatalf("marked under %v, want one lease", inner)
	}
	// And it is free when the round is over.
	lease, err := s.locker.Acquire(t.Context(), ScanLock, reentrant.WaitAtMost(0))
	if err != nil {
		t.Fatal(err)
	}
	lease.Release(t.Context())
}

func TestScan_BusySkipsTheRound(t *testing.T) {
	s, n := scanner(t, Hooks{})
	place(t, s.db, 1)
	other, err := s.locker.Acquire(t.Context(), ScanLock)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.Scan(t.Context()); got != 0 || !errors.Is(err, reentrant.ErrBusy) {
		t.Errorf("announced %d (%v), want 0 and busy", got, err)
	}
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Scan(t.Context()); got != 1 || err != nil || len(n.ids) != 1 {
		t.Errorf("announced %d (%v), want 1 once the lock is free", got, err)
	}
}

// A round that dies between telling and marking is told again, under the same ID, even if
// the order was closed meanwhile.
func TestScan_DiesBeforeMarking(t *testing.T) {
	died := errors.New("died")
	fail := true
	s, n := scanner(t, Hooks{Marking: func(context.Context, []Event) error {
		if fail {
			return died
		}
		return nil
	}})
	place(t, s.db, 1)
	if _, err := s.Scan(t.Context()); !errors.Is(err, died) {
		t.Fatalf("error = %v, want %v", err, died)
	}
	s.db.MustExec(`UPDATE orders SET state = 'closed'`)
	fail = false
	if got, err := s.Scan(t.Context()); got != 1 || err != nil {
		t.Errorf("announced %d (%v), want 1", got, err)
	}
	if want := []string{"timeout:1:7", "timeout:1:7"}; !slices.Equal(n.ids, want) {
		t.Errorf("told %v, want %v", n.ids, want)
	}
	if got, err := s.Scan(t.Context()); got != 0 || err != nil {
		t.Errorf("announced %d (%v) after that, want 0", got, err)
	}
}

func TestScan_NotToldIsNotMarked(t *testing.T) {
	s, n := scanner(t, Hooks{})
	n.err = errors.New("no broker")
	place(t, s.db, 1)
	if got, err := s.Scan(t.Context()); got != 0 || !errors.Is(err, n.err) {
		t.Errorf("announced %d (%v), want 0 and %v", got, err, n.err)
	}
	if got := count(t, s.db, "SELECT count(*) FROM orders WHERE announced_at IS NOT NULL"); got != 0 {
		t.Errorf("%d orders are marked, want none", got)
	}
}
