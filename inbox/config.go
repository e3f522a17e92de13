package inbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jmoiron/sqlx"
)

// Defaults and limits of [Config].
const (
	DefaultMaxHold       = 60 * time.Second
	DefaultLockTimeout   = 2 * time.Second
	DefaultCommitTimeout = 30 * time.Second
	DefaultStride        = 8
	DefaultMaxAnswer     = 64 << 10

	DefaultFenceRetention = 7 * 24 * time.Hour

	// KeepForever is the [Config.FenceRetention] of fences that are never removed.
	KeepForever time.Duration = math.MaxInt64

	// MaxBatch is how many messages share a transaction. With more savepoints than
	// this in one transaction, released ones included, every reader of the server
	// slows down, and a batch whose messages fail needs one for each.
	MaxBatch = 64

	// MaxSet is how many messages share a transaction that needs no savepoint for each:
	// that of [Inbox.ApplySet], and on pgx of [Inbox.ApplyQueue].
	MaxSet = 256
)

// Config is the settings of an [Inbox].
type Config struct {
	// Consumer names who handles the messages: one message is handled once for
	// each name. It is part of what is stored, so choose it by hand and keep it
	// when code is renamed. A new name starts with an empty inbox.
	//
	// Required. At most 200 bytes.
	Consumer string

	// Tenant divides a consumer further. A tenant that differs per message belongs
	// in the message's ID.
	//
	// Defaults to none. At most 200 bytes.
	Tenant string

	// Schema holds the tables. It must be lower case letters, digits and "_".
	//
	// Defaults to the search path of the connection.
	Schema string

	// Table is the name of the main table, and the beginning of the names of the
	// others, such as inbox_fence. It must be lower case letters, digits and "_", and
	// no reserved word.
	//
	// Defaults to [DefaultTable]. At most 40 bytes.
	Table string

	// MaxHold is how long a transaction may stand idle between two statements
	// before the server ends it (idle_in_transaction_session_timeout). It is what
	// frees a key whose holder was frozen, so it must be longer than a handler
	// thinks without asking the database.
	//
	// Defaults to 60s. From 1s to 24h.
	MaxHold time.Duration

	// LockTimeout is how long a statement of the transaction waits for a lock, in
	// the claim for another claim of the same resource or ID. Then the message is
	// [Busy]. It stays in force for the handler.
	//
	// Defaults to 2s. From 1ms to MaxHold.
	LockTimeout time.Duration

	// CommitTimeout is how long the answer to a COMMIT or ROLLBACK is awaited. Then
	// the outcome is unknown and the message is [Again]. It does not depend on
	// the context of the call.
	//
	// Defaults to 30s. From 100ms to 1h.
	CommitTimeout time.Duration

	// Stride is how many handlers of a batch run between two savepoints. A failing
	// message costs the others of its stride a second run; a savepoint costs a
	// trip to the server. While more than about 4 % of the messages fail, a
	// savepoint is made for each one.
	//
	// Defaults to 8. From 1 to 64.
	Stride int

	// MaxAnswer is the limit of what [Inbox.Answer] stores with a message, in bytes.
	//
	// Defaults to 64 KiB. At most 16 MiB.
	MaxAnswer int

	// Prepare keeps the claim prepared on each connection of the pool, for as long as
	// both live: the server plans it once per connection and not each time, and lib/pq
	// asks once where it asks twice. Make few inboxes per pool then. It must stay off
	// behind a PgBouncer in transaction mode without max_prepared_statements (1.21 or
	// newer), and changes little with drivers that prepare by themselves, such as pgx.
	//
	// Defaults to false: nothing is left in a session.
	Prepare bool

	// MaxAttempts is how many failures are charged to a message before it is given up: it
	// is [Dead] then, decided for good. Failures are counted in the database, so by all
	// processes together; a message that can never succeed (an error with a method
	// Permanent() bool that answers true) is given up at once, and so is one whose ID
	// belongs to another, or that has none, if it has a [Message.Position].
	//
	// Defaults to 0: the inbox counts nothing and gives nobody up. At most 1000.
	MaxAttempts int

	// ParkKey keeps the order of a lock also behind a dead letter: messages of its lock
	// (the first of their [Message.Fences]) that come later are stored and [Parked], until
	// [Inbox.Unpark] handles the dead letter and them. Messages with a fence must have a
	// [Message.Body] then. It needs MaxAttempts.
	//
	// Defaults to false: the others of a lock go on without the dead one.
	ParkKey bool

	// MaxStarts is how many processes may die while they handle one [Message.Suspect].
	// Then it is given up with a [*CrashError], without being handled. It counts only
	// where MaxAttempts is set.
	//
	// Defaults to [DefaultMaxStarts]. At most 1000.
	MaxStarts int

	// DeadLetter is called for each message that is given up, with the transaction that
	// decides it: what it writes is committed with that or not at all. A table of
	// messages to send is a good place. If it fails, its writes are undone and the message
	// stays [Failed]; the next failure tries again. It must not end tx. It runs on the
	// goroutine of the call, and may run again for a message whose transaction was not
	// committed.
	//
	// Defaults to nothing: the row of the message says that it is dead, and the log why.
	DeadLetter func(ctx context.Context, tx *sqlx.Tx, d DeadLetter) error

	// AsyncCommit leaves synchronous_commit as the server, the database or the
	// role has set it. A crash of the server may then lose effects that were
	// reported as applied, together with their rows.
	//
	// Defaults to false: the claim turns synchronous_commit on.
	AsyncCommit bool

	// FenceRetention is how long [Inbox.Purge] keeps the rows of fences whose tokens are
	// times, see [Fence.Token]. So that what a removed one has refused stays refused, the
	// claim refuses tokens that are older than half of it, by the clock of the database, as
	// [Stale]: a lock that is held for longer has to be acquired anew now and then. All
	// who share the tables must have the same; change it by no more than half or
	// double at a time.
	//
	// Defaults to 7 days. At least 1h, and at least four times what a claim lasts that waits
	// LockTimeout for each fence of [MaxSet] messages; a default that is less is raised to
	// that. [KeepForever] turns both off.
	FenceRetention time.Duration

	// Logger is told what no caller can be told, such as an answer to a COMMIT
	// that came too late.
	//
	// Defaults to [slog.Default].
	Logger *slog.Logger
}

func (c Config) withDefaults() Config {
	c.Table = cmp.Or(c.Table, DefaultTable)
	c.MaxHold = cmp.Or(c.MaxHold, DefaultMaxHold)
	c.LockTimeout = cmp.Or(c.LockTimeout, min(DefaultLockTimeout, c.MaxHold))
	c.CommitTimeout = cmp.Or(c.CommitTimeout, DefaultCommitTimeout)
	c.Stride = cmp.Or(c.Stride, DefaultStride)
	c.MaxStarts = cmp.Or(c.MaxStarts, DefaultMaxStarts)
	c.MaxAnswer = cmp.Or(c.MaxAnswer, DefaultMaxAnswer)
	c.FenceRetention = cmp.Or(c.FenceRetention, max(DefaultFenceRetention, 2*c.longestClaim()))
	c.Logger = cmp.Or(c.Logger, slog.Default())
	return c
}

const maxScopeBytes = 200

func (c Config) validate() error {
	var errs []error
	add := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if strings.TrimSpace(c.Consumer) == "" {
		add("Consumer is %q, must be a name chosen by hand, such as \"billing\"", c.Consumer)
	}
	if c.Tenant != "" && strings.TrimSpace(c.Tenant) == "" {
		add("Tenant is %q, must be empty or a name", c.Tenant)
	}
	for _, f := range []struct{ name, value string }{{"Consumer", c.Consumer}, {"Tenant", c.Tenant}} {
		if len(f.value) > maxScopeBytes {
			add("%s is %d bytes long, must be at most %d", f.name, len(f.value), maxScopeBytes)
		}
		if !utf8.ValidString(f.value) || strings.ContainsRune(f.value, 0) {
			add("%s is %q, must be UTF-8 without NUL", f.name, f.value)
		}
	}
	errs = append(errs, c.names().validate()...)
	if c.MaxHold < time.Second || c.MaxHold > 24*time.Hour {
		add("MaxHold is %v, must be from 1s to 24h", c.MaxHold)
	}
	if c.LockTimeout < time.Millisecond || c.LockTimeout > c.MaxHold { // PostgreSQL takes 0 for "no limit"
		add("LockTimeout is %v, must be from 1ms to MaxHold (%v)", c.LockTimeout, c.MaxHold)
	}
	if c.CommitTimeout < 100*time.Millisecond || c.CommitTimeout > time.Hour {
		add("CommitTimeout is %v, must be from 100ms to 1h", c.CommitTimeout)
	}
	if c.Stride < 1 || c.Stride > MaxBatch {
		add("Stride is %d, must be from 1 to %d", c.Stride, MaxBatch)
	}
	if c.MaxAnswer < 1 || c.MaxAnswer > 16<<20 {
		add("MaxAnswer is %d, must be from 1 to %d bytes", c.MaxAnswer, 16<<20)
	}
	if least := max(time.Hour, 2*c.longestClaim()); c.FenceRetention < least {
		add("FenceRetention is %v, must be at least %v (with this LockTimeout)", c.FenceRetention, least)
	}
	if c.MaxAttempts < 0 || c.MaxAttempts > 1000 {
		add("MaxAttempts is %d, must be from 1 to 1000, or 0 to count nothing", c.MaxAttempts)
	}
	if c.ParkKey && c.MaxAttempts == 0 {
		add("ParkKey is set, so MaxAttempts must be from 1 to 1000")
	}
	if c.MaxStarts < 1 || c.MaxStarts > 1000 {
		add("MaxStarts is %d, must be from 1 to 1000", c.MaxStarts)
	}
	return errors.Join(errs...)
}

// longestClaim is how long a claim can wait, all in all: for each fence and each ID.
func (c Config) longestClaim() time.Duration { return 2 * MaxSet * c.LockTimeout }

func (c Config) names() names { return names{c.Schema, c.Table} }
