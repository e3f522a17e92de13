package inbox

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// An AnswerError says that what a handler answered cannot be stored. Nothing of the
// message is committed: a shortened answer would be another one.
type AnswerError struct {
	ID    string
	Bytes int
	Limit int // [Config.MaxAnswer]
}

func (e *AnswerError) Error() string {
	return fmt.Sprintf("inbox: answer to message %q has %d bytes, must have at most %d (Config.MaxAnswer)", e.ID, e.Bytes, e.Limit)
}
func (e *AnswerError) Permanent() bool { return true }

// answerSQL stores an answer. No claim of the same key is in its way: each waits for
// the transaction that this is a part of.
const answerSQL = `UPDATE {inbox} SET result = $2::bytea WHERE key = $1::uuid`

// Answer is [Inbox.Apply] for a handler whose answer is wanted again by whoever delivers
// the message another time, such as the client of an HTTP handler that retries: it is
// stored in the message's row, for as long as that is kept, and comes with each
// [Duplicate]. A nil answer is not stored. An answer costs a trip to the server; one
// longer than [Config.MaxAnswer] is an [*AnswerError].
func (b *Inbox) Answer(ctx context.Context, m Message, fn func(ctx context.Context, tx *sqlx.Tx) ([]byte, error)) Result {
	var answer []byte
	key := b.key(m.ID)
	res := b.Apply(ctx, m, func(ctx context.Context, tx *sqlx.Tx) (err error) {
		switch answer, err = fn(ctx, tx); {
		case err != nil || answer == nil:
			return err
		case len(answer) > b.cfg.MaxAnswer:
			return &AnswerError{m.ID, len(answer), b.cfg.MaxAnswer}
		}
		_, err = tx.ExecContext(ctx, b.sql.answer, key.text(), answer)
		switch {
		case state(err) == inFailedTransaction:
			return fmt.Errorf("%w: %w", ErrSwallowed, err)
		case err != nil:
			return fmt.Errorf("store answer: %w", err)
		}
		return nil
	})
	if res.Outcome == Applied {
		res.Answer = answer
	}
	return res
}
