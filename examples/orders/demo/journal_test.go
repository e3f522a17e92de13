package demo

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

func TestJournal_AwaitSeesReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal()
		got := make(chan error, 1)
		go func() {
			got <- j.await(t.Context(), "a decision", func() bool {
				_, ok := j.decided(at(7))
				return ok
			})
		}()
		synctest.Wait()
		j.tell("A", report{Outcome: &outcome{At: at(7), Result: resultBusy}})
		synctest.Wait()
		select {
		case err := <-got:
			t.Fatalf("await ended with %v, though nothing is decided", err)
		default:
		}
		j.tell("A", report{Outcome: &outcome{At: at(7), Decided: true}})
		if err := <-got; err != nil {
			t.Error(err)
		}
	})
}

func TestJournal_AwaitSaysWhatWasAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		err := newJournal().await(t.Context(), "the impossible", func() bool { return false })
		if got := time.Since(start); got != waitAtMost {
			t.Errorf("gave up after %v, want %v", got, waitAtMost)
		}
		if err == nil || !strings.Contains(err.Error(), "the impossible") || !strings.Contains(err.Error(), waitAtMost.String()) {
			t.Errorf("error = %v, want what was awaited, and for how long", err)
		}
	})
}

func TestJournal_AwaitEndsWithCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	died := errors.New("instance A ended")
	cancel(died)
	if err := newJournal().await(ctx, "anything", func() bool { return false }); !errors.Is(err, died) {
		t.Errorf("error = %v, want %v", err, died)
	}
}

func TestPoll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		err := poll(t.Context(), "three", func(context.Context) (bool, error) { n++; return n == 3, nil })
		if err != nil || n != 3 {
			t.Errorf("asked %d times, error %v, want 3 times and none", n, err)
		}
		broken := errors.New("server is gone")
		if err := poll(t.Context(), "an answer", func(context.Context) (bool, error) { return false, broken }); !errors.Is(err, broken) {
			t.Errorf("error = %v, want %v", err, broken)
		}
		n = 0
		err = poll(t.Context(), "a coordinator", func(context.Context) (bool, error) {
			if n++; n == 1 {
				return false, fmt.Errorf("describe group: %w", kerr.CoordinatorNotAvailable)
			}
			return true, nil
		})
		if err != nil || n != 2 {
			t.Errorf("asked %d times, error %v, want 2 times and none", n, err)
		}
		err = poll(t.Context(), "the impossible", func(context.Context) (bool, error) { return false, nil })
		if err == nil || !strings.Contains(err.Error(), "the impossible") {
			t.Errorf("error = %v, want what was awaited", err)
		}
	})
}

func TestJournal_Counts(t *testing.T) {
	j := newJournal()
	for _, result := range []string{resultApplied, resultDuplicate, resultDuplicate, resultStale, resultBusy, "uncharged", resultSkipped} {
		decided := result == resultApplied || result == resultDuplicate || result == resultSkipped
		j.tell("A", report{Outcome: &outcome{At: at(1), Result: result, Decided: decided}})
	}
	j.tell("A", report{Round: &round{Announced: 5}})
	j.tell("A", report{Round: &round{Busy: true}})
	want := counts{
		tries: 7, deliveries: 4, applied: 1, skipped: 1, duplicates: 2, stale: 1, busy: 1, otherTries: 1,
		rounds: 2, roundBusy: 1, announced: 5,
	}
	if j.counts != want {
		t.Errorf("counts = %+v, want %+v", j.counts, want)
	}
}
