package inbox

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"

	"github.com/jmoiron/sqlx"
)

//go:embed migrations/*.sql
var files embed.FS

type migration struct {
	version  int
	name     string
	up, down string
}

var migrationFile = regexp.MustCompile(`^(\d{4})_(\w+)\.up\.sql$`)

// migrations returns all migrations, version 1 first.
func migrations() ([]migration, error) {
	dir, err := fs.Sub(files, "migrations")
	if err != nil {
		return nil, err
	}
	all, err := fs.Glob(dir, "*.up.sql") // sorted
	if err != nil {
		return nil, err
	}
	var ms []migration
	for _, file := range all {
		parts := migrationFile.FindStringSubmatch(file)
		if parts == nil {
			return nil, fmt.Errorf("migration %s has no number", file)
		}
		m := migration{name: parts[2]}
		if m.version, err = strconv.Atoi(parts[1]); err != nil || m.version != len(ms)+1 {
			return nil, fmt.Errorf("migration %s must have number %d", file, len(ms)+1)
		}
		for name, s := range map[string]*string{file: &m.up, parts[1] + "_" + m.name + ".down.sql": &m.down} {
			b, err := fs.ReadFile(dir, name)
			if err != nil {
				return nil, err
			}
			*s = string(b)
		}
		ms = append(ms, m)
	}
	return ms, nil
}

// A MigrateOption is an option of [Migrate].
type MigrateOption interface{ migrate(*migrateOptions) }

// A CheckOption is an option of [Check].
type CheckOption interface{ check(*names) }

// A NameOption is an option of both.
type NameOption interface {
	MigrateOption
	CheckOption
}

type migrateOptions struct {
	names
	to int // -1: the newest
}

// InSchema is the option of [Migrate] and [Check] for tables in a schema of their
// own, overriding the default of the search path. Migrate makes the schema if it
// is missing. The name is that of [Config.Schema].
func InSchema(name string) NameOption {
	return nameOption(func(n *names) { n.schema = name })
}

// WithTable is the option of [Migrate] and [Check] for tables with another name than
// [DefaultTable]. The name is that of [Config.Table].
func WithTable(name string) NameOption {
	return nameOption(func(n *names) { n.table = cmp.Or(name, DefaultTable) })
}

type nameOption func(*names)

func (o nameOption) migrate(m *migrateOptions) { o(&m.names) }
func (o nameOption) check(n *names)            { o(n) }

// To is the option of [Migrate] for a version other than the newest. A version
// below that of the database goes back, which drops what is stored; 0 removes
// everything but the schema.
func To(version int) MigrateOption { return toOption(version) }

type toOption int

func (o toOption) migrate(m *migrateOptions) { m.to = int(o) }

// migrationLock is the key of the advisory lock that keeps migrations of one
// database apart. Any number will do, as long as nobody else uses it.
const migrationLock = 0x6f6e6365_77617264

const (
	migrationTableSQL = `
CREATE TABLE IF NOT EXISTS {inbox_migration} (
  version    int PRIMARY KEY,
  name       text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
)`
	migratedSQL        = `SELECT coalesce(max(version), 0) FROM {inbox_migration}`
	noteMigrationSQL   = `INSERT INTO {inbox_migration} (version, name) VALUES ($1, $2)`
	forgetMigrationSQL = `DELETE FROM {inbox_migration} WHERE version = $1`
	dropMigrationsSQL  = `DROP TABLE {inbox_migration}`
)

// Migrate brings the tables to the newest version, or the one of [To], in one
// transaction: all or nothing. It needs a role that may create tables. Several
// processes may call it at once: one works, and the others wait for it, until ctx
// ends, and find nothing to do.
//
// A database that is newer than this package is left alone.
func Migrate(ctx context.Context, db *sqlx.DB, opts ...MigrateOption) (err error) {
	o := migrateOptions{names{table: DefaultTable}, -1}
	for _, opt := range opts {
		opt.migrate(&o)
	}
	ms, err := migrations()
	if err != nil {
		return fmt.Errorf("inbox: migrate: %w", err)
	}
	if err := errors.Join(append(o.validate(), checkVersion(o.to, len(ms)))...); err != nil {
		return fmt.Errorf("inbox: migrate: %w", err)
	}
	// READ COMMITTED by name: a snapshot from before the wait for the lock would not
	// show what the one before us has done.
	tx, err := db.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return fmt.Errorf("inbox: migrate: begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // after a commit it does nothing
	if err := migrateTx(ctx, tx, o, ms); err != nil {
		return fmt.Errorf("inbox: migrate: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("inbox: migrate: commit: %w", err)
	}
	return nil
}

func checkVersion(to, newest int) error {
	if to < -1 || to > newest {
		return fmt.Errorf("To is %d, must be from 0 to %d", to, newest)
	}
	return nil
}

func migrateTx(ctx context.Context, tx *sqlx.Tx, o migrateOptions, ms []migration) error {
	// Of the transaction, not of the session: it cannot be left behind, and works
	// behind PgBouncer.
	if _, err := tx.ExecContext(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(migrationLock)); err != nil {
		return fmt.Errorf("wait for other migrations: %w", err)
	}
	if o.schema != "" {
		if err := useSchema(ctx, tx, o.schema); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, o.in(migrationTableSQL)); err != nil {
		return fmt.Errorf("create inbox_migration: %w", err)
	}
	var now int
	if err := tx.GetContext(ctx, &now, o.in(migratedSQL)); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	to := o.to
	if to < 0 {
		to = max(now, len(ms))
	}
	if to < now && now > len(ms) {
		return fmt.Errorf("the database has version %d, and this package knows the way back from %d only", now, len(ms))
	}
	for ; now < to; now++ {
		m := ms[now]
		if _, err := tx.ExecContext(ctx, o.migration(m.up)); err != nil {
			return fmt.Errorf("version %d (%s): %w", m.version, m.name, err)
		}
		if _, err := tx.ExecContext(ctx, o.in(noteMigrationSQL), m.version, m.name); err != nil {
			return fmt.Errorf("version %d (%s): %w", m.version, m.name, err)
		}
	}
	for ; now > to; now-- {
		m := ms[now-1]
		if _, err := tx.ExecContext(ctx, o.migration(m.down)); err != nil {
			return fmt.Errorf("back from version %d (%s): %w", m.version, m.name, err)
		}
		if _, err := tx.ExecContext(ctx, o.in(forgetMigrationSQL), m.version); err != nil {
			return fmt.Errorf("back from version %d (%s): %w", m.version, m.name, err)
		}
	}
	if to == 0 {
		if _, err := tx.ExecContext(ctx, o.in(dropMigrationsSQL)); err != nil {
			return fmt.Errorf("drop inbox_migration: %w", err)
		}
	}
	return nil
}

// useSchema makes the schema the search path of the transaction.
func useSchema(ctx context.Context, tx *sqlx.Tx, schema string) error {
	var exists bool
	if err := tx.GetContext(ctx, &exists, `SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1)`, schema); err != nil {
		return fmt.Errorf("look for schema %s: %w", schema, err)
	}
	if !exists { // not IF NOT EXISTS, which asks for a right that is not needed if it does
		if _, err := tx.ExecContext(ctx, `CREATE SCHEMA "`+schema+`"`); err != nil {
			return fmt.Errorf("create schema %s: %w", schema, err)
		}
	}
	if _, err := tx.ExecContext(ctx, `SELECT set_config('search_path', $1, true)`, `"`+schema+`"`); err != nil {
		return fmt.Errorf("use schema %s: %w", schema, err)
	}
	return nil
}
