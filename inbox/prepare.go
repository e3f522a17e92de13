package inbox

import (
	"context"
	"fmt"
)

// prepare prepares the claim if [Config.Prepare] asks for it, the first time it is
// called. It needs a connection of its own for that, so it must not be called in a
// transaction: with a pool of one connection it would wait for ever.
func (b *Inbox) prepare(ctx context.Context) error {
	if !b.cfg.Prepare || b.prepared.Load() != nil {
		return nil
	}
	stmt, err := b.db.PrepareContext(ctx, b.sql.claim)
	if err != nil {
		return fmt.Errorf("prepare the claim: %w", err)
	}
	if !b.prepared.CompareAndSwap(nil, stmt) {
		_ = stmt.Close() // somebody else was faster; what it says of a lost connection is found out soon enough
	}
	return nil
}

// queryClaim runs the claim. A connection that has not prepared it does so, once.
func (b *Inbox) queryClaim(ctx context.Context, t *txn, args []any) ([]int, error) {
	stmt := b.prepared.Load()
	if stmt == nil {
		return queryInts(ctx, t.tx, b.sql.claim, args...)
	}
	rows, err := t.tx.StmtContext(ctx, stmt).QueryContext(ctx, args...) // the transaction's own statement ends with it
	if err != nil {
		return nil, err
	}
	return scanInts(rows)
}
