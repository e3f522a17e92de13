package inbox

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/jmoiron/sqlx"

	"github.com/onceward/onceward/inbox/internal/crash"
)

// A parcel is what one message has queued.
type parcel struct {
	e          *entry
	statements []statement
}

// flights take what the messages of a transaction have queued to the server: all of it
// in one, and the rest in a further one after each message that fails.
//
// Each stride of messages follows a savepoint. None is released: that a statement has
// affected too few rows is found out when others after it have run, and then all of them
// have to go. So there are never more savepoints than strides, and not more than
// MaxBatch. Which message has failed is always known, so the length of a stride says
// only how many run again with it.
type flights struct {
	*strider
	rest  []parcel // to be sent
	size  int      // of a stride
	apart bool     // strides have savepoints; not if there is one message
	first int      // number of the first stride of rest
	open  bool     // its savepoint is set
	last  bool     // COMMIT goes along
}

// together is the runner of handlers that queue, on a pipe.
func (s *strider) together(fresh []*entry, fn queuer) error {
	rest, err := s.collect(fresh, fn)
	if err != nil {
		return err
	}
	if rest, err = s.prepareNew(rest); err != nil {
		return err
	}
	f := flights{strider: s, rest: rest, apart: len(fresh) > 1, last: len(rest) == len(fresh) && !s.others && crash.From(s.ctx) == nil}
	f.size = max(s.b.pace.stride(s.b.cfg.Stride), (len(rest)+MaxBatch-1)/MaxBatch)
	for _, p := range rest {
		// Not if something else may be left to do in the transaction.
		f.last = f.last && !p.e.noted && !slices.ContainsFunc(p.statements, func(s statement) bool { return s.rows != anyRows })
	}
	for len(f.rest) > 0 {
		if err := f.fly(); err != nil {
			return err
		}
	}
	if s.ctx.Err() != nil && !s.t.pipe.finished {
		return context.Cause(s.ctx)
	}
	if f.apart {
		s.notePace(fresh)
	}
	return nil
}

// collect runs the handlers. Those that fail have sent nothing.
func (s *strider) collect(fresh []*entry, fn queuer) (rest []parcel, err error) {
	for _, e := range fresh {
		p := parcel{e: e}
		s.fn = func(ctx context.Context, _ *sqlx.Tx, i int) (err error) {
			p.statements, err = queued(ctx, fn, i)
			return err
		}
		if err := s.call(e); err != nil {
			if err := s.hopeless(e, err); err != nil {
				return nil, err
			}
			e.result = e.failed(err)
			continue
		}
		rest = append(rest, p)
	}
	return rest, nil
}

// prepareNew prepares statements that are new to the connection. That has to be done
// before they are sent, and behind a savepoint. Messages with one that the server refuses
// have failed.
func (s *strider) prepareNew(rest []parcel) ([]parcel, error) {
	for {
		var queries []string
		for _, p := range rest {
			for _, st := range p.statements {
				queries = append(queries, st.query)
			}
		}
		news := s.t.pipe.known.new(queries)
		if len(news) == 0 {
			return rest, nil
		}
		bad, err := s.t.pipe.prepare(s.ctx, news, true)
		if err == nil {
			return rest, nil
		}
		if bad < 0 || s.ctx.Err() != nil || disconnected(err) {
			return nil, fmt.Errorf("prepare statements: %w", err)
		}
		if _, err := s.t.pipe.send(s.ctx, []statement{{query: undoStride}}); err != nil {
			return nil, fmt.Errorf("prepare statements: %w", err)
		}
		rest = slices.DeleteFunc(rest, func(p parcel) bool {
			if !slices.ContainsFunc(p.statements, func(st statement) bool { return st.query == news[bad] }) {
				return false
			}
			p.e.result = p.e.failed(err)
			return true
		})
	}
}

// fly sends the rest. If a message fails, its stride is undone, and it leaves.
func (f *flights) fly() error {
	at, err := f.send()
	if err == nil {
		f.rest = nil
		return nil
	}
	e, first := f.rest[at].e, at-at%f.size
	if err := f.hopeless(e, err); err != nil {
		return err
	}
	if !f.apart {
		f.rest = nil
		return f.alone(e, err)
	}
	f.first, f.open, f.last = f.first+first/f.size, true, false
	if _, undone := f.t.pipe.send(f.ctx, []statement{{query: `ROLLBACK TO SAVEPOINT ` + strideName(f.first)}}); undone != nil {
		var stride []*entry
		for _, p := range f.rest[first:min(first+f.size, len(f.rest))] {
			stride = append(stride, p.e)
		}
		return f.broken(stride, at-first, err, undone)
	}
	e.result = e.failed(err)
	f.rest = slices.Delete(f.rest[first:], at-first, at-first+1)
	return nil
}

func strideName(n int) string { return "onceward_" + strconv.Itoa(n) }

// send is one flight. It returns the position in rest of the message that failed.
func (f *flights) send() (at int, err error) {
	var ss []statement
	var of []int // the position of the message to which a statement belongs
	for i, p := range f.rest {
		if f.apart && i%f.size == 0 && (i > 0 || !f.open) {
			ss = append(ss, statement{query: `SAVEPOINT ` + strideName(f.first+i/f.size), rows: anyRows})
			of = append(of, i)
		}
		for _, s := range p.statements {
			ss = append(ss, s)
			of = append(of, i)
		}
	}
	var replies []reply
	if len(ss) == 0 && !f.last {
		return 0, nil
	}
	if f.last {
		replies, err = f.t.pipe.sendLast(f.ctx, ss, f.b.cfg.CommitTimeout)
	} else {
		replies, err = f.t.pipe.send(f.ctx, ss)
	}
	for i := range min(len(replies), len(ss)) {
		if err := ss[i].check(replies[i].affected); err != nil {
			return of[i], err
		}
	}
	if err != nil {
		return of[min(len(replies), len(of)-1)], err
	}
	return 0, nil
}
