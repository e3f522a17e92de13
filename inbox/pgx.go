package inbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
)

// All that is known of pgx is in this file.

// A pipe is a connection of pgx, which takes several statements in one flight: they
// are sent together, and their replies awaited together.
type pipe struct {
	conn  *pgx.Conn
	known *known
	eqb   pgx.ExtendedQueryBuilder

	begun    bool
	finished bool  // COMMIT was sent with a flight,
	outcome  error // and this is what became of it
}

// A statement is one that waits to be sent.
type statement struct {
	query string
	args  []any
	rows  int64 // that it must affect; anyRows: not checked
}

// A reply is what a statement was answered with.
type reply struct {
	affected int64
	rows     [][]string // each value in its text form
}

// known is what is remembered about a connection, for as long as it lives.
type known struct {
	// named are the statements that the server has prepared. Nil: the application has
	// told pgx to keep none, because another client may get the same session.
	named map[string]*pgconn.StatementDescription
	made  int // names
}

// mostNamed bounds the statements that a connection keeps, for applications that put
// values into their SQL. Others are parsed each time.
const mostNamed = 256

// usesPgx reports whether the connections of db are pgx's own.
func usesPgx(db *sql.DB) bool {
	_, ok := db.Driver().(*stdlib.Driver)
	return ok
}

// newPipe returns the pipe of a connection, and a transaction on it whose BEGIN is
// still to be sent. Nil: it is not one of pgx.
//
// The connection of the driver is used outside of Raw, whose lock keeps others off.
// There are none: conn is the caller's alone until it is closed.
func newPipe(ctx context.Context, db *sqlx.DB, conn *sqlx.Conn) (p *pipe, tx *sqlx.Tx, err error) {
	err = conn.Raw(func(raw any) error {
		c, ok := raw.(*stdlib.Conn)
		if !ok {
			return nil
		}
		if c.Conn().IsClosed() {
			return driver.ErrBadConn
		}
		p = &pipe{conn: c.Conn(), known: knownOf(c.Conn())}
		tx, err = guest{c, p}.begin(ctx, db)
		return err
	})
	return p, tx, err
}

const knownKey = "github.com/onceward/onceward/inbox"

func knownOf(conn *pgx.Conn) *known {
	data := conn.PgConn().CustomData()
	k, ok := data[knownKey].(*known)
	if !ok {
		k = &known{}
		if conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement {
			k.named = map[string]*pgconn.StatementDescription{}
		}
		data[knownKey] = k
	}
	return k
}

// new returns the queries that have to be prepared before they are sent.
func (k *known) new(queries []string) (news []string) {
	if k.named == nil {
		return nil
	}
	seen := map[string]bool{}
	for _, q := range queries {
		if k.named[q] == nil && !seen[q] && len(k.named)+len(news) < mostNamed {
			seen[q] = true
			news = append(news, q)
		}
	}
	return news
}

// prepare prepares queries that are new to the connection, in one flight, in a
// transaction behind a savepoint, which is still there if it fails. It returns the
// position of the query that the server refused, or -1.
func (p *pipe) prepare(ctx context.Context, queries []string, inTransaction bool) (bad int, err error) {
	line := p.conn.PgConn().StartPipeline(ctx)
	defer func() {
		if closed := closeAfter(line, err); closed != nil {
			err = closed
		}
	}()
	if inTransaction {
		line.SendQueryParams(savepoint, nil, nil, nil, nil)
	}
	names := make([]string, len(queries))
	for i, q := range queries {
		// A name is never used twice: what made it useless once may do so again.
		p.known.made++
		names[i] = fmt.Sprintf("onceward_%d", p.known.made)
		line.SendPrepare(names[i], q, nil)
	}
	if inTransaction {
		line.SendQueryParams(`RELEASE SAVEPOINT onceward`, nil, nil, nil, nil)
	}
	if err := line.Sync(); err != nil {
		return -1, err
	}
	if inTransaction {
		if _, err := readReply(line); err != nil {
			return -1, err
		}
	}
	for i, q := range queries {
		answer, err := line.GetResults()
		if err != nil {
			return i, err
		}
		sd, ok := answer.(*pgconn.StatementDescription)
		if !ok {
			return -1, fmt.Errorf("unexpected answer %T to PREPARE", answer)
		}
		sd.Name, sd.SQL = names[i], q
		p.known.named[q] = sd
	}
	return -1, nil
}

// closeAfter ends a flight. What the server still has to say after an error is but
// its consequence.
func closeAfter(line *pgconn.Pipeline, err error) error {
	if closed := line.Close(); err == nil {
		return closed
	}
	return nil
}

// send sends statements in one flight. If one fails, it returns the replies to those
// before it, the rest has not run, and nothing is known about those before it until
// the transaction has been rolled back to where it was sound.
func (p *pipe) send(ctx context.Context, ss []statement) (replies []reply, err error) {
	return p.fly(ctx, ss, nil)
}

// fly is send that calls last, if not nil, when all statements but the last have been
// answered.
func (p *pipe) fly(ctx context.Context, ss []statement, last func()) (replies []reply, err error) {
	line := p.conn.PgConn().StartPipeline(ctx)
	sent := 0
	var unfit error // the arguments of the statement after those that were sent
	for i, s := range ss {
		if last != nil && i == len(ss)-1 {
			line.SendFlushRequest() // or the server would keep its answers until it has them all
		}
		if unfit = p.put(line, s); unfit != nil {
			break
		}
		sent++
	}
	defer func() {
		if closed := closeAfter(line, err); closed != nil {
			err = closed
		}
		if err != nil && state(err) == "" && p.conn.IsClosed() {
			err = fmt.Errorf("%w: %w", driver.ErrBadConn, err)
		}
		if s := state(err); s == cachedPlan || s == noStatement {
			for _, s := range ss { // prepare them anew
				delete(p.known.named, s.query)
			}
		}
	}()
	if err := line.Sync(); err != nil {
		return nil, err
	}
	replies = make([]reply, 0, sent)
	for i := range sent {
		if last != nil && i == len(ss)-1 {
			last()
		}
		r, err := readReply(line)
		if err != nil {
			return replies, err
		}
		replies = append(replies, r)
	}
	return replies, unfit
}

func (p *pipe) put(line *pgconn.Pipeline, s statement) error {
	sd := p.known.named[s.query]
	if err := p.eqb.Build(p.conn.TypeMap(), sd, s.args); err != nil {
		return err
	}
	if sd == nil {
		line.SendQueryParams(s.query, p.eqb.ParamValues, nil, p.eqb.ParamFormats, nil)
	} else {
		line.SendQueryStatement(sd, p.eqb.ParamValues, p.eqb.ParamFormats, nil)
	}
	return nil
}

func readReply(line *pgconn.Pipeline) (r reply, err error) {
	answer, err := line.GetResults()
	if err != nil {
		return r, err
	}
	result, ok := answer.(*pgconn.ResultReader)
	if !ok {
		return r, fmt.Errorf("unexpected answer %T to a statement", answer)
	}
	for result.NextRow() {
		row := make([]string, len(result.Values()))
		for i, v := range result.Values() {
			row[i] = string(v)
		}
		r.rows = append(r.rows, row)
	}
	tag, err := result.Close()
	r.affected = tag.RowsAffected()
	return r, err
}

const (
	beginSQL  = `BEGIN ISOLATION LEVEL READ COMMITTED`
	commitSQL = `COMMIT`
)

// begin sends BEGIN and the claim in one flight.
func (p *pipe) begin(ctx context.Context, query string, args []any) (ords []int, err error) {
	if news := p.known.new([]string{query, beginSQL, commitSQL}); len(news) > 0 {
		if _, err := p.prepare(ctx, news, false); err != nil {
			return nil, err
		}
	}
	p.begun = true
	replies, err := p.send(ctx, []statement{{query: beginSQL}, {query: query, args: args}})
	if err != nil {
		return nil, err
	}
	for _, row := range replies[1].rows {
		n, err := strconv.Atoi(row[0])
		if err != nil {
			return nil, fmt.Errorf("database answered %q, must be a number", row[0])
		}
		ords = append(ords, n)
	}
	return ords, nil
}

// sendLast is send with COMMIT as the last statement. Once all others have been
// answered it is not stopped by ctx, but awaited for at most as long as within. If no
// error is returned, COMMIT of the transaction returns what became of it.
func (p *pipe) sendLast(ctx context.Context, ss []statement, within time.Duration) (replies []reply, err error) {
	flight, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	defer stop()
	var late *time.Timer
	replies, err = p.fly(flight, append(ss, statement{query: commitSQL}), func() {
		stop()
		late = time.AfterFunc(within, func() { cancel(errNoAnswer) })
	})
	if late != nil {
		late.Stop()
	}
	switch {
	case err == nil:
		p.finished = true
	case p.conn.IsClosed():
		p.finished = true
		if errors.Is(context.Cause(flight), errNoAnswer) {
			err = fmt.Errorf("%w to COMMIT within %v: %w", errNoAnswer, within, err)
		}
		p.outcome = err
	case len(replies) == len(ss):
		p.finished, p.outcome = true, err
	default: // the server has skipped it
		return replies, err
	}
	return replies, nil
}

// A guest is a connection on which database/sql believes to begin and end a
// transaction, and to own it. So a handler gets a transaction of the usual type,
// while BEGIN, and perhaps COMMIT, goes out with other statements.
type guest struct {
	*stdlib.Conn
	p *pipe
}

func (g guest) Connect(context.Context) (driver.Conn, error) { return g, nil }
func (g guest) Driver() driver.Driver                        { return stdlib.GetDefaultDriver() }

func (g guest) begin(ctx context.Context, db *sqlx.DB) (*sqlx.Tx, error) {
	own := sql.OpenDB(g)
	defer own.Close() // the transaction keeps its connection until it ends
	like := *db       // with its mapper
	like.DB = own
	return like.BeginTxx(ctx, nil)
}

// BeginTx implements [driver.ConnBeginTx].
func (g guest) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return g, nil }

// Close implements [driver.Conn]. The pool of the application closes it.
func (g guest) Close() error { return nil }

// ExecContext implements [driver.ExecerContext].
func (g guest) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if g.p.finished { // else it would be a transaction of its own
		return nil, sql.ErrTxDone
	}
	return g.Conn.ExecContext(ctx, query, args)
}

// QueryContext implements [driver.QueryerContext].
func (g guest) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if g.p.finished {
		return nil, sql.ErrTxDone
	}
	return g.Conn.QueryContext(ctx, query, args)
}

// Commit implements [driver.Tx].
func (g guest) Commit() error {
	if g.p.finished {
		return g.p.outcome
	}
	if err := g.lives(); err != nil {
		return err
	}
	tag, err := g.p.conn.Exec(context.Background(), commitSQL)
	if err == nil && tag.String() != commitSQL {
		err = pgx.ErrTxCommitRollback
	}
	return err
}

// Rollback implements [driver.Tx].
func (g guest) Rollback() error {
	if g.p.finished || !g.p.begun {
		return nil
	}
	if err := g.lives(); err != nil {
		return err
	}
	_, err := g.p.conn.Exec(context.Background(), "ROLLBACK")
	return err
}

// lives returns an error if there is no transaction on the connection any more. The
// server would answer COMMIT with success all the same.
func (g guest) lives() error {
	switch {
	case g.p.conn.IsClosed():
		return driver.ErrBadConn
	case g.p.conn.PgConn().TxStatus() == 'I':
		return sql.ErrTxDone
	}
	return nil
}
