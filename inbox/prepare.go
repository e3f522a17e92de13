package inbox

import (
	"context"
	"database/sql"
	"fmt"
)

// prepare prepares the claims if [Config.Prepare] asks for it, the first time it is
// called. It needs a connection of its own for that, so it must not be called in a
// transaction: with a pool of one connection it would wait for ever.
func (b *Inbox) prepare(ctx context.Context) error {
	if !b.cfg.Prepare || b.pgx || b.prepared.Load() != nil {
		return nil
	}
	stmts := map[string]*sql.Stmt{}
	undo := func() {
		for _, stmt := range stmts {
			_ = stmt.Close() // what it says of a lost connection is found out soon enough
		}
	}
	for _, statement := range []string{b.sql.claim, b.sql.claimOne} {
		stmt, err := b.db.PrepareContext(ctx, statement)
		if err != nil {
			undo()
			return fmt.Errorf("prepare the claim: %w", err)
		}
		stmts[statement] = stmt
	}
	if !b.prepared.CompareAndSwap(nil, &stmts) {
		undo() // somebody else was faster
	}
	return nil
}

// queryClaim runs a claim, with BEGIN in the same flight if that is still to be sent. A
// connection that has not prepared it does so, once.
func (b *Inbox) queryClaim(ctx context.Context, t *txn, statement string, args []any) ([]int, error) {
	stmts := b.prepared.Load()
	switch {
	case t.pipe != nil:
		return t.pipe.begin(ctx, statement, args)
	case stmts == nil:
		return queryInts(ctx, t.tx, statement, args...)
	}
	rows, err := t.tx.StmtContext(ctx, (*stmts)[statement]).QueryContext(ctx, args...) // the transaction's own statement ends with it
	if err != nil {
		return nil, err
	}
	return scanInts(rows)
}
