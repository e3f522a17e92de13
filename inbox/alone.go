package inbox

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
)

var (
	parameter = regexp.MustCompile(`\$\d+`)
	// What keys, numbers, and arrays of them are made of.
	harmless = regexp.MustCompile(`^([0-9a-f{},-]|NULL)*$`)
)

// inline puts arguments into a statement that runs outside of a transaction, so that it
// is one message to the server: with arguments apart lib/pq sends two, and a pooler in
// transaction mode would hand them to two connections, the second of which may have a
// statement of somebody else's to run with them.
//
// args are keys, numbers, and arrays of them, which need no escape.
func inline(statement string, args ...any) (_ string, err error) {
	statement = parameter.ReplaceAllStringFunc(statement, func(p string) string {
		n, _ := strconv.Atoi(p[1:]) // digits
		text := fmt.Sprint(args[n-1])
		if !harmless.MatchString(text) {
			err = fmt.Errorf("argument %s is %q, must be a key, a number, or an array of them", p, text)
		}
		return "'" + text + "'"
	})
	return statement, err
}

// alone runs a statement outside of a transaction and returns how many rows it changed.
// args are as for [inline].
func (b *Inbox) alone(ctx context.Context, statement string, args ...any) (rows int64, err error) {
	statement, err = inline(statement, args...)
	if err != nil {
		return 0, err
	}
	result, err := b.db.ExecContext(ctx, statement)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// getAlone is alone for a statement that returns one row.
func (b *Inbox) getAlone(ctx context.Context, dest any, statement string, args ...any) error {
	statement, err := inline(statement, args...)
	if err != nil {
		return err
	}
	return b.db.GetContext(ctx, dest, statement)
}
