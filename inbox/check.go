package inbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// A table is what the statements of this package need of a table, whoever made it.
type table struct {
	name    string
	version int               // of the migration that makes it
	columns map[string]string // type by name
	unique  string            // columns of the unique index that the statements rely on
	rights  []string
}

var tables = []table{
	{
		name: "inbox_scope", version: 1, unique: "tenant,consumer", rights: []string{"SELECT", "INSERT"},
		columns: map[string]string{"id": "integer", "tenant": "text", "consumer": "text"},
	},
	{
		name: "inbox", version: 1, unique: "key", rights: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: map[string]string{
			"key": "uuid", "fingerprint": "uuid", "topic": "uuid", "created_at": "timestamp with time zone", "off": "bigint",
			"part": "integer", "scope": "integer", "dead": "boolean", "id": "text", "result": "bytea",
		},
	},
	{
		name: "inbox_fence", version: 1, unique: "resource", rights: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: map[string]string{"resource": "uuid", "token": "bigint", "parked": "boolean"},
	},
	{
		name: "inbox_mark", version: 3, unique: "scope,topic,part,first", rights: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: map[string]string{
			"topic": "uuid", "first": "bigint", "next": "bigint", "seen": "bigint", "ripe": "bigint", "at": "timestamp with time zone", "scope": "integer", "part": "integer",
		},
	},
	{
		name: "inbox_purge", version: 3, unique: "scope", rights: []string{"SELECT", "INSERT", "UPDATE"},
		columns: map[string]string{"scope": "integer", "page": "bigint", "began": "timestamp with time zone"},
	},
	{
		name: "inbox_task", version: 2, unique: "key", rights: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: map[string]string{
			"key": "uuid", "fingerprint": "uuid", "topic": "uuid", "owner": "uuid", "lease_until": "timestamp with time zone", "started_at": "timestamp with time zone",
			"off": "bigint", "token": "bigint", "part": "integer", "scope": "integer", "starts": "integer", "state": "text", "id": "text",
		},
	},
	{
		name: "inbox_attempt", version: 4, unique: "key", rights: []string{"SELECT", "INSERT", "UPDATE", "DELETE"},
		columns: map[string]string{
			"key": "uuid", "at": "timestamp with time zone", "scope": "integer", "attempts": "integer", "started": "integer", "id": "text", "last": "text",
		},
	},
	{
		name: "inbox_parked", version: 4, unique: "scope,resource,seq", rights: []string{"SELECT", "INSERT", "DELETE"},
		columns: map[string]string{
			"resource": "uuid", "seq": "bigint", "at": "timestamp with time zone", "key": "uuid", "scope": "integer", "dead": "boolean", "name": "bytea",
			"id": "text", "message": "bytea",
		},
	},
}

// A SchemaError says what the database lacks.
type SchemaError struct {
	// Missing names each thing, such as "table inbox_fence".
	Missing []string

	// DDL is what has to be run, by a role that may, to make up for it. Where a
	// table is there and differs, only people can tell what to do with it.
	DDL string
}

func (e *SchemaError) Error() string {
	s := "inbox: the database lacks " + strings.Join(e.Missing, ", ")
	if e.DDL == "" {
		return s
	}
	return s + "; call inbox.Migrate with a role that may create tables, or run:\n" + e.DDL
}

// checkSQL reads the catalogue, which every role may, and asks for the rights of
// the role that calls. In: the names of tables, as they are to be looked up.
// Out: a line per column; a line with nothing but the name if there is no such
// table.
const checkSQL = `
SELECT t.name, r.oid IS NOT NULL AS found, coalesce(a.attname, '') AS column, coalesce(format_type(a.atttypid, a.atttypmod), '') AS type,
  coalesce((SELECT string_agg(p, ',') FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS p
    WHERE has_table_privilege(r.oid, p)), '') AS rights,
  coalesce((SELECT string_agg(u.columns, ';') FROM (
    SELECT (SELECT string_agg(k.attname, ',' ORDER BY o.ord) FROM unnest(x.indkey::int2[]) WITH ORDINALITY AS o(num, ord)
      JOIN pg_attribute k ON k.attrelid = r.oid AND k.attnum = o.num) AS columns
    FROM pg_index x WHERE x.indrelid = r.oid AND x.indisunique AND x.indisvalid AND x.indimmediate AND x.indpred IS NULL) u), '') AS uniques,
  quote_ident(current_user) AS role
FROM unnest($1::text[]) AS t(name)
LEFT JOIN pg_class r ON r.oid = to_regclass(t.name)
LEFT JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped`

type columnRow struct {
	Name, Column, Type, Rights, Uniques, Role string
	Found                                     bool
}

// Check returns nil if the database has what this package needs, and the role of
// db may use it. Else it returns a [*SchemaError]; another error says that the
// database could not be asked. It changes nothing and needs no right to.
func Check(ctx context.Context, db *sqlx.DB, opts ...CheckOption) error {
	o := names{table: DefaultTable}
	for _, opt := range opts {
		opt.check(&o)
	}
	if err := errors.Join(o.validate()...); err != nil {
		return fmt.Errorf("inbox: check: %w", err)
	}
	ms, err := migrations()
	if err != nil {
		return fmt.Errorf("inbox: check: %w", err)
	}
	var names array
	for _, t := range tables {
		names.text(o.in("{" + t.name + "}"))
	}
	// In a transaction, so that a pooler does not tear the statement apart: see inline.
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return fmt.Errorf("inbox: check: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	var rows []columnRow
	if err := tx.SelectContext(ctx, &rows, checkSQL, names.String()); err != nil {
		return fmt.Errorf("inbox: check: %w", err)
	}
	var e SchemaError
	var versions []int
	var grants []string
	for _, t := range tables {
		name := o.in("{" + t.name + "}")
		of := slices.DeleteFunc(slices.Clone(rows), func(r columnRow) bool { return r.Name != name })
		missing, grant := t.compare(name, of)
		e.Missing = append(e.Missing, missing...)
		if !of[0].Found && !slices.Contains(versions, t.version) {
			versions = append(versions, t.version)
		}
		if grant != "" {
			grants = append(grants, grant)
		}
	}
	if len(e.Missing) == 0 {
		return nil
	}
	if o.schema != "" && len(versions) > 0 {
		e.DDL = `SET search_path TO "` + o.schema + "\";\n"
	}
	for _, v := range versions {
		e.DDL += o.migration(ms[v-1].up)
	}
	for _, grant := range grants {
		e.DDL += grant + ";\n"
	}
	return &e
}

// compare returns what a table lacks, and the statement that gives the rights.
func (t table) compare(name string, rows []columnRow) (missing []string, grant string) {
	if !rows[0].Found {
		return []string{"table " + name}, ""
	}
	for _, column := range slices.Sorted(maps.Keys(t.columns)) {
		i := slices.IndexFunc(rows, func(r columnRow) bool { return r.Column == column })
		switch want := t.columns[column]; {
		case i < 0:
			missing = append(missing, fmt.Sprintf("column %s of %s (%s)", column, name, want))
		case rows[i].Type != want:
			missing = append(missing, fmt.Sprintf("type %s of column %s of %s (it is %s)", want, column, name, rows[i].Type))
		}
	}
	if !slices.Contains(strings.Split(rows[0].Uniques, ";"), t.unique) {
		missing = append(missing, fmt.Sprintf("unique key (%s) of %s", t.unique, name))
	}
	var rights []string
	for _, right := range t.rights {
		if !slices.Contains(strings.Split(rows[0].Rights, ","), right) {
			rights = append(rights, right)
			missing = append(missing, fmt.Sprintf("right to %s on %s", right, name))
		}
	}
	if len(rights) > 0 {
		grant = fmt.Sprintf("GRANT %s ON %s TO %s", strings.Join(rights, ", "), name, rows[0].Role)
	}
	return missing, grant
}
