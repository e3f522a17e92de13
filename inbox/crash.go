package inbox

import (
	"context"
	"database/sql/driver"
	"fmt"

	"github.com/onceward/onceward/inbox/internal/crash"
)

// reach tells a test's hook, if ctx carries one, that the transaction has come to p.
// An error of the hook is the end of the transaction.
func (t *txn) reach(ctx context.Context, p crash.Point) error {
	hook := crash.From(ctx)
	if hook == nil {
		return nil
	}
	err := hook(ctx, p)
	if err == nil {
		return nil
	}
	t.die()
	if p == crash.AfterCommit {
		return fmt.Errorf("%w: %v: %w", ErrUnknown, p, err)
	}
	return fmt.Errorf("%v: %w", p, err)
}

// die closes the connection without a word about the transaction, as the death of
// the process does.
func (t *txn) die() {
	t.over = true
	_ = t.conn.Raw(func(c any) error { return c.(driver.Conn).Close() })
	_ = t.tx.Rollback() // reaches nobody; ends what database/sql keeps for the transaction
	// Now that there is none, database/sql may be told not to use it again.
	_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
}
