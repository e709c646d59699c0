package router

import (
	"errors"
	"fmt"
	"slices"

	"github.com/postrider/postrider/event"
)

// Router applies mappings to rows. It is for one goroutine.
type Router struct {
	sources  map[tableName]*source
	topics   []string
	types    *typeTable
	named    map[uint32]TypeName
	bindings map[uint32]*binding

	// last is the binding of the row before, which usually is the next one's too.
	last *binding

	// Scratch space that lives as long as the message that was routed last.
	buf    []byte
	tmp    []byte
	key    []byte
	values []cell
	conv   converter
	names  names
}

type tableName struct{ schema, table string }

// source is a compiled Source.
type source struct {
	cfg    Source
	routes *routeTable
	// head is what an envelope begins with: {"payload":
	head []byte
}

// maxScratch is the scratch space that is kept between rows: a single huge row
// must not hold its memory for ever.
const maxScratch = 1 << 20

// New checks the configuration and compiles what does not depend on the tables.
// The error joins one *ConfigError for each problem.
func New(cfg Config) (*Router, error) {
	r := &Router{
		sources:  map[tableName]*source{},
		types:    newTypeTable(),
		named:    map[uint32]TypeName{},
		bindings: map[uint32]*binding{},
		names:    names{},
	}
	var found problems
	if len(cfg.Sources) == 0 {
		found.add("sources", "empty")
	}
	at := map[tableName]string{}
	for i := range cfg.Sources {
		path := fmt.Sprintf("sources[%d]", i)
		src, wrong := compileSource(&cfg.Sources[i], path)
		found = append(found, wrong...)
		name := tableName{src.cfg.Schema, src.cfg.Table}
		if first := at[name]; first != "" && name.table != "" {
			found.add(path+".table", "is %s.%s, as is that of %s", name.schema, name.table, first)
		}
		at[name] = path
		r.sources[name] = src
		r.topics = append(r.topics, src.routes.static()...)
	}
	slices.Sort(r.topics)
	r.topics = slices.Compact(r.topics)
	found = append(found, checkDeadLetters(cfg.Sources, r.topics)...)
	if len(found) > 0 {
		return nil, errors.Join(found...)
	}
	return r, nil
}

func compileSource(cfg *Source, path string) (*source, problems) {
	found := validateSource(cfg, path)
	routes, wrong := compileRoutes(cfg, path)
	src := &source{cfg: *cfg, routes: routes}
	if e := cfg.Mapping.Envelope; e != nil {
		src.head = append(appendJSONString([]byte{'{'}, []byte(e.payloadName())), ':')
	}
	return src, append(found, wrong...)
}

// static lists the topics of the templates without fields.
func (t *routeTable) static() (topics []string) {
	for i := range t.routes {
		if r := &t.routes[i]; len(r.template) > 0 {
			if name, ok := r.template.static(); ok {
				topics = append(topics, name)
			}
		}
	}
	return topics
}

// StaticTopics lists the topics that are known without a row: those of routes
// whose template has no field. They can be probed at start.
func (r *Router) StaticTopics() []string { return slices.Clone(r.topics) }

// DefineType tells the router what a Type message said: the type oid is the
// built-in type schema.name or, for a domain, is based on it (pgoutput sends the
// base type's name under the domain's oid, and an empty schema for pg_catalog).
// Without it a column of a domain over bytea or timestamptz is taken for text.
// Types precede the Relation that uses them.
func (r *Router) DefineType(oid uint32, schema, name string) {
	r.types.define(oid, schema, name)
	r.named[oid] = TypeName{schema, name}
}

// TypeName is what a Type message called a type.
type TypeName struct{ Schema, Name string }

// TypeName gives back what DefineType was told, for a row that is kept to be routed by
// another Router.
func (r *Router) TypeName(oid uint32) (TypeName, bool) {
	t, ok := r.named[oid]
	return t, ok
}

// Bind compiles the mapping for a table as rel describes it, under rel's own name.
// It is called before the first row and again whenever the description changed.
// Without a source for the table the result is nil and its rows are not routed.
// A mapping that does not fit gives a *BindError, and rows of rel are refused.
func (r *Router) Bind(rel *event.Relation) error {
	return r.BindAs(rel, rel.Namespace, rel.Name)
}

// BindAs is Bind under another table's name: a leaf of a partitioned outbox is
// bound as its root (trap 25).
func (r *Router) BindAs(rel *event.Relation, schema, table string) error {
	r.last = nil
	src := r.sources[tableName{schema, table}]
	if src == nil {
		r.bindings[rel.OID] = &binding{rel: rel}
		return nil
	}
	b := bind(rel, src, r.types)
	r.bindings[rel.OID] = b
	if b.err != nil {
		return b.err
	}
	return nil
}

// binding finds what rel was bound to; nil where this description was not.
func (r *Router) binding(rel *event.Relation) *binding {
	if r.last != nil && r.last.rel == rel {
		return r.last
	}
	b := r.bindings[rel.OID]
	if b == nil || b.rel != rel && (b.rel.Generation != rel.Generation || len(b.rel.Columns) != len(rel.Columns)) {
		return nil
	}
	r.last = b
	return b
}
