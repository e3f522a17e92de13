package service

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
	"github.com/onceward/onceward/inbox"
)

//go:embed migrations/0001_orders.sql
var tables string

// ErrSchema: the database does not have the tables.
var ErrSchema = errors.New("schema not migrated, run: orders migrate")

const migratedSQL = `SELECT to_regclass('orders') IS NOT NULL`

// Migrate makes the tables of the service and of the inbox, in the search path of
// db. Tables that are there are left alone.
func Migrate(ctx context.Context, db *sqlx.DB) error {
	if err := inbox.Migrate(ctx, db); err != nil {
		return err
	}
	var done bool
	if err := db.GetContext(ctx, &done, migratedSQL); err != nil {
		return fmt.Errorf("look for table orders: %w", err)
	}
	if done {
		return nil
	}
	// One statement for the server, so all of it or nothing.
	if _, err := db.ExecContext(ctx, tables); err != nil {
		return fmt.Errorf("make tables: %w", err)
	}
	return nil
}

// check asks the database whether it has the tables of the service. Those of the inbox
// are checked by its own module.
func check(ctx context.Context, db *sqlx.DB) error {
	var done bool
	if err := db.PingContext(ctx); err != nil {
		return fmt.Errorf("Postgres does not answer, check its address: %w", err)
	}
	if err := db.GetContext(ctx, &done, migratedSQL); err != nil {
		return fmt.Errorf("look for table orders: %w", err)
	}
	if !done {
		return fmt.Errorf("there is no table orders: %w", ErrSchema)
	}
	return nil
}
