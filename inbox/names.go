package inbox

import (
	"fmt"
	"regexp"
	"strings"
)

// DefaultTable is the name of the main table, and the beginning of the others'.
const DefaultTable = "inbox"

// names are those of the tables.
type names struct {
	schema string // empty: found by the search path
	table  string // of the main table; the others' begin with it
}

// in puts the names of the tables, written {inbox} and {inbox_fence} in the
// statements of this package, into a statement.
func (n names) in(statement string) string {
	schema := n.schema
	if schema != "" {
		schema = `"` + schema + `".`
	}
	return strings.NewReplacer("{inbox", schema+n.table, "}", "").Replace(statement)
}

// bare matches what migrations make: tables, and what belongs to them.
var bare = regexp.MustCompile(`\binbox(_[a-z_]+)?\b`)

// migration puts the names of the tables into a migration. Those are plain SQL for
// everybody's tools, with the default names, in the search path.
func (n names) migration(ddl string) string {
	if n.table == DefaultTable {
		return ddl
	}
	return bare.ReplaceAllString(ddl, n.table+"$1")
}

var (
	schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)
	// With room for what is added to it.
	tableName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,39}$`)
)

func (n names) validate() (errs []error) {
	if n.schema != "" && (!schemaName.MatchString(n.schema) || strings.HasPrefix(n.schema, "pg_")) {
		errs = append(errs, fmt.Errorf("Schema is %q, must be empty or 1 to 63 lower case letters, digits and \"_\", not starting with a digit or \"pg_\"", n.schema))
	}
	if !tableName.MatchString(n.table) || strings.HasPrefix(n.table, "pg_") {
		errs = append(errs, fmt.Errorf("Table is %q, must be 1 to 40 lower case letters, digits and \"_\", not starting with a digit or \"pg_\"", n.table))
	}
	return errs
}
