package devtest

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/onceward/onceward/internal/devstack"
)

// dropWithin bounds the clean-up of a schema.
const dropWithin = 20 * time.Second

// PostgresURL returns the address of the shared server with an empty schema first in the
// search path, for pools that the test opens itself or in other processes. When the test
// ends, connections made with this address are ended and the schema is dropped.
func PostgresURL(t testing.TB) string {
	t.Helper()
	server := sharedPostgres.get(t).Parts[devstack.Postgres].URL
	schema := schemaName(t.Name())
	address, err := withSchema(server, schema)
	if err != nil {
		t.Fatal(err)
	}
	if err := exec(t.Context(), server, "CREATE SCHEMA "+pq.QuoteIdentifier(schema)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), dropWithin)
		defer cancel()
		// A connection of a test that failed half-way, or of a process that it paused,
		// may hold locks on the tables. They carry the schema's name.
		err := exec(ctx, server,
			"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = "+pq.QuoteLiteral(schema),
			"DROP SCHEMA "+pq.QuoteIdentifier(schema)+" CASCADE")
		if err != nil {
			t.Errorf("drop schema %s: %v", schema, err)
		}
	})
	return address
}

// withSchema adds parameters that every driver sends to the server.
func withSchema(server, schema string) (string, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", fmt.Errorf("%s must be a URL: %w", devstack.EnvPostgres, err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	q.Set("application_name", schema)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

var notInName = regexp.MustCompile(`[^a-z0-9_]+`)

// schemaName returns a name that no other test uses, and in which people find the test's.
func schemaName(test string) string {
	name := notInName.ReplaceAllString(strings.ToLower(test), "_")
	// Postgres cuts names at 63 bytes, without an error.
	return fmt.Sprintf("%.40s_%.16s", name, strings.ToLower(rand.Text()))
}

func exec(ctx context.Context, address string, statements ...string) error {
	db, err := sql.Open("postgres", address)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
