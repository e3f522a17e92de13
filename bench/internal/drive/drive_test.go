package drive

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestRateIsThatOfAllCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, err := Run(t.Context(), 4, time.Second, func(_ context.Context, caller, turn int) (int, error) {
			time.Sleep(100 * time.Millisecond)
			return 2, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		// Ten or eleven turns: the last one may begin as the time ends.
		if r.Did < 80 || r.Did > 88 || r.Rate < 79.9 || r.Rate > 80.1 || r.Stuck != 0 {
			t.Errorf("got %+v, want a rate of 80", r)
		}
	})
}

func TestCallersThatDoNotComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r, err := Run(t.Context(), 2, time.Second, func(ctx context.Context, caller, turn int) (int, error) {
			if caller == 0 {
				<-ctx.Done()
				return 0, ctx.Err()
			}
			time.Sleep(time.Second)
			return 1, nil
		})
		if err != nil || r.Stuck != 1 || r.Did == 0 {
			t.Errorf("got %+v and error %v, want one that is stuck", r, err)
		}
		if took := time.Since(start); took != time.Second+StuckAfter {
			t.Errorf("took %v", took)
		}
	})
}

func TestFailuresAreTold(t *testing.T) {
	broken := errors.New("it broke")
	_, err := Run(t.Context(), 3, time.Second, func(context.Context, int, int) (int, error) { return 0, broken })
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "3 callers failed") {
		t.Errorf("error = %v", err)
	}
}

func TestNothingDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, err := Run(t.Context(), 1, time.Second, func(context.Context, int, int) (int, error) {
			time.Sleep(time.Second)
			return 0, nil
		})
		if err == nil {
			t.Error("nothing was done, and that was no error")
		}
	})
}
