package migrations

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Grants says what the running role needs rights on.
type Grants struct {
	Role     string
	Database string
	// Outbox tables are read after a doubtful start and by commands, never by the
	// stream. Leave them out, and those say what they cannot check.
	Outbox []Table
	// Purge lets the role delete from them, too.
	Purge bool
}

// Right is what the running role may do with a table of ours.
type Right struct {
	// Table is qualified, as SQL wants it.
	Table      string
	Privileges []string
}

// Rights are the least that the running role needs on our tables, beside USAGE on the schema.
func Rights() []Right {
	const s, i, u, d = "SELECT", "INSERT", "UPDATE", "DELETE"
	return []Right{
		{Schema + ".checkpoint", []string{s, i, u}},
		{Schema + ".parked", []string{s, i, u, d}},
		{Schema + ".command", []string{s, i, u}},
		{Schema + ".task", []string{s, i, u}},
		{Schema + ".task_item", []string{s, i, u, d}},
		{Schema + ".audit", []string{s, i}},
		{versionTable, []string{s}},
	}
}

// GrantsSQL gives the least privileges of the role that runs "postrider run", as SQL
// for a DBA. It may run more than once, and sets no password.
func GrantsSQL(g Grants) string {
	role := pgx.Identifier{g.Role}.Sanitize()
	var b strings.Builder
	fmt.Fprintf(&b, `DO %[3]s BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %[1]s) THEN
        CREATE ROLE %[2]s;
    END IF;
END %[3]s;
`, literal(g.Role), role, dollarTag(g.Role))
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+" TO %s;\n", append(args, role)...) }
	fmt.Fprintf(&b, "ALTER ROLE %s LOGIN REPLICATION;\n", role)
	// What comes on the stream, and what a topic holds, is compared with the table in temporary ones.
	line("GRANT CONNECT, TEMPORARY ON DATABASE %s", pgx.Identifier{g.Database}.Sanitize())
	line("GRANT USAGE ON SCHEMA %s", Schema)
	for _, r := range Rights() {
		line("GRANT %s ON %s", strings.Join(r.Privileges, ", "), r.Table)
	}
	for _, schema := range schemas(g.Outbox) {
		line("GRANT USAGE ON SCHEMA %s", pgx.Identifier{schema}.Sanitize())
	}
	rights := "SELECT"
	if g.Purge {
		rights = "SELECT, DELETE"
	}
	for _, table := range g.Outbox {
		line("GRANT %s ON %s", rights, table.SQL())
	}
	return b.String()
}

func schemas(tables []Table) []string {
	var names []string
	seen := map[string]bool{}
	for _, t := range tables {
		if !seen[t.Schema] {
			seen[t.Schema] = true
			names = append(names, t.Schema)
		}
	}
	return names
}

// dollarTag gives a dollar quote that s does not hold.
func dollarTag(s string) string {
	tag := "$do$"
	for n := 1; strings.Contains(s, tag); n++ {
		tag = fmt.Sprintf("$do%d$", n)
	}
	return tag
}

// literal quotes a string constant.
func literal(s string) string {
	q := strings.ReplaceAll(s, "'", "''")
	if !strings.Contains(q, `\`) {
		return "'" + q + "'"
	}
	return "E'" + strings.ReplaceAll(q, `\`, `\\`) + "'"
}
