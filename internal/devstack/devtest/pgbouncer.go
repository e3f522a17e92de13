package devtest

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/lib/pq"
	"github.com/onceward/onceward/internal/devstack"
)

var (
	sharedPgBouncer = &shared{cfg: devstack.Config{PgBouncer: true}}

	pgBouncerMu sync.Mutex // guards the file of databases, and pgBouncerN
	pgBouncerN  int
)

// forDrivers are the parameters of an address that are not for the server.
var forDrivers = []string{"sslmode", "application_name", "connect_timeout", "binary_parameters", "default_query_exec_mode", "statement_cache_capacity", "description_cache_capacity"}

// PgBouncerURL returns an address that leads to the database at address, most likely of
// [PostgresURL], by way of a PgBouncer in transaction mode that the tests of this binary
// share. PgBouncer does not take the settings in an address (search_path,
// deadlock_timeout), so its own connections are opened with those of address.
//
// Without PgBouncer the test is skipped, or fails (see the package comment).
func PgBouncerURL(t testing.TB, address string) string {
	t.Helper()
	stack := sharedPgBouncer.get(t)
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	console, err := url.Parse(stack.Parts[devstack.PgBouncer].URL)
	if err != nil {
		t.Fatal(err)
	}
	settings, kept := url.Values{}, url.Values{}
	for name, values := range u.Query() {
		if slices.Contains(forDrivers, name) {
			kept[name] = values
		} else {
			settings[name] = values
		}
	}
	name, err := addDatabase(stack, console.String(), u, settings)
	if err != nil {
		t.Fatal(fmt.Errorf("tell PgBouncer of %s: %w", address, err))
	}
	console.Path, console.RawQuery = "/"+name, kept.Encode()
	return console.String()
}

// addDatabase gives PgBouncer a database that leads to server, and returns its name.
func addDatabase(stack *devstack.Stack, console string, server *url.URL, settings url.Values) (_ string, err error) {
	pgBouncerMu.Lock()
	defer pgBouncerMu.Unlock()
	pgBouncerN++
	name := fmt.Sprintf("db%d", pgBouncerN)
	line := fmt.Sprintf("%s = host=%s port=%s dbname=%s user=%s", name, server.Hostname(), server.Port(),
		quoted(strings.TrimPrefix(server.Path, "/")), quoted(server.User.Username()))
	if password, ok := server.User.Password(); ok { // an empty one makes it refuse the whole file
		line += " password=" + quoted(password)
	}
	var query strings.Builder
	for setting, values := range settings {
		fmt.Fprintf(&query, "SELECT set_config(%s, %s, false);", pq.QuoteLiteral(setting), pq.QuoteLiteral(values[0]))
	}
	if query.Len() > 0 {
		line += " connect_query=" + quoted(query.String())
	}
	f, err := os.OpenFile(filepath.Join(stack.Dir, devstack.PgBouncer, devstack.PgBouncerDatabases), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return "", err
	}
	_, err = fmt.Fprintln(f, line)
	if err := errors.Join(err, f.Close()); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), dropWithin)
	defer cancel()
	return name, exec(ctx, console, "RELOAD")
}

// quoted is a value of PgBouncer's connect strings.
func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
