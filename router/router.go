package router

import "github.com/postrider/postrider/event"

// Router applies mappings to rows. It is for one goroutine.
type Router struct {
	sources []Source
}

// New checks the configuration and compiles what does not depend on the tables.
// The error joins one *ConfigError for each problem.
func New(cfg Config) (*Router, error) {
	return &Router{sources: cfg.Sources}, nil
}

// DefineType tells the router what a Type message said: the type oid is the
// built-in type schema.name or, for a domain, is based on it (pgoutput sends the
// base type's name under the domain's oid, and an empty schema for pg_catalog).
// Without it a column of a domain over bytea or timestamptz is taken for text.
// Types precede the Relation that uses them.
func (r *Router) DefineType(oid uint32, schema, name string) {}

// Bind compiles the mapping for a table as rel describes it, under rel's own name.
// It is called before the first row and again whenever the description changed.
// Without a source for the table the result is nil and its rows are not routed.
// A mapping that does not fit gives a *BindError, and rows of rel are refused.
func (r *Router) Bind(rel *event.Relation) error {
	return r.BindAs(rel, rel.Namespace, rel.Name)
}

// BindAs is Bind under another table's name: a leaf of a partitioned outbox is
// bound as its root.
func (r *Router) BindAs(rel *event.Relation, schema, table string) error { return nil }

// Route fills msg from row. routed is false without a refusal where the row's table
// is no source. msg and its slices are valid until the next call of the router and
// until the row is no longer valid; Headers' backing array is reused. The refusal
// keeps no memory of the row.
func (r *Router) Route(row *event.Row, msg *event.Message) (routed bool, refusal *event.Refusal) {
	return false, nil
}

// StaticTopics lists the topics that are known without a row: those of routes
// whose template has no field. They can be probed at start.
func (r *Router) StaticTopics() []string { return nil }

// Columns lists the columns of the table that the source uses, without repeats:
// what a publication's column list must hold and a reader of the table selects.
func (s *Source) Columns() []string { return nil }

// Profile gives the mapping and routes of a known outbox layout: "default",
// "debezium", "quarkus", "polling" or "prisma". Schema is left empty, Table is the
// layout's usual name; both may be overwritten, as may any field.
func Profile(name string) (Source, bool) { return Source{}, false }

// Profiles lists the names that Profile knows.
func Profiles() []string { return nil }
