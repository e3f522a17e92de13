package inbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jmoiron/sqlx"
)

// An Inbox applies messages, each once. It is safe for concurrent use, holds
// nothing that must be closed, and starts nothing.
type Inbox struct {
	db   *sqlx.DB
	cfg  Config
	sql  statements
	pace pace
	pgx  bool // whether that is the driver of db

	limits [3]any // arguments of limitsSQL

	memory memory

	streaks streaks

	// scope is the row of inbox_scope, 0 until it has been looked up.
	scope atomic.Int64

	// prepared are the claims, by their text, with [Config.Prepare], nil until they are
	// needed. They are closed with db.
	prepared atomic.Pointer[map[string]*sql.Stmt]
}

// statements are those of the methods, with the names of this inbox's tables.
type statements struct {
	scope, newScope, claim, claimOne, look, busy, unclaim, answer, mark string
	charge, forgive, dead, revive, start, end                           string
}

// New returns an inbox on db. It reports every mistake in cfg, and does no I/O.
// db stays the caller's. Each Apply and ApplyBatch at work needs one connection.
func New(db *sqlx.DB, cfg Config) (*Inbox, error) {
	cfg = cfg.withDefaults()
	err := cfg.validate()
	if db == nil {
		err = errors.Join(errors.New("db is nil"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("inbox: %w", err)
	}
	in := cfg.names().in
	claim, claimOne := claimSQL, claimOneSQL
	if cfg.MaxAttempts > 0 {
		claim += claimNotedSQL
		claimOne += claimOneNotedSQL
	}
	return &Inbox{
		db:  db,
		cfg: cfg,
		sql: statements{
			in(scopeSQL), in(newScopeSQL), in(claim), in(claimOne), in(lookSQL), in(busySQL), in(unclaimSQL), in(answerSQL), in(markSQL),
			in(chargeSQL), in(forgiveSQL), in(deadSQL), in(reviveSQL), in(startSQL), in(endSQL),
		},
		limits: cfg.limits(),
		pgx:    usesPgx(db.DB),
	}, nil
}

// in puts the names of the tables into a statement that is not sent often.
func (b *Inbox) in(statement string) string { return b.cfg.names().in(statement) }

const (
	scopeSQL = `SELECT id FROM {inbox_scope} WHERE tenant = $1 AND consumer = $2`

	// Without RETURNING: a rival's row, waited for, would not be returned.
	newScopeSQL = `INSERT INTO {inbox_scope} (tenant, consumer) VALUES ($1, $2) ON CONFLICT (tenant, consumer) DO NOTHING`
)

// scopeID returns the number of the scope, making it if it is new. Several may
// look it up at once, and find the same.
func (b *Inbox) scopeID(ctx context.Context) (int64, error) {
	if id := b.scope.Load(); id != 0 {
		return id, nil
	}
	id, err := b.findScope(ctx)
	if err != nil {
		return 0, fmt.Errorf("look up scope (tenant %q, consumer %q): %w", b.cfg.Tenant, b.cfg.Consumer, err)
	}
	b.scope.Store(id)
	return id, nil
}

func (b *Inbox) findScope(ctx context.Context) (int64, error) {
	t, err := b.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer t.rollback()
	var ids []int64
	for range 2 {
		if err := t.tx.SelectContext(ctx, &ids, b.sql.scope, b.cfg.Tenant, b.cfg.Consumer); err != nil {
			return 0, err
		}
		if len(ids) == 1 {
			return ids[0], t.commit()
		}
		if _, err := t.tx.ExecContext(ctx, b.sql.newScope, b.cfg.Tenant, b.cfg.Consumer); err != nil {
			return 0, err
		}
	}
	return 0, errors.New("it was deleted as soon as it was made")
}
