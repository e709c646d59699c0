package replication

import (
	"slices"
	"sync/atomic"

	"github.com/postrider/postrider/event"
)

// generations numbers the Relation messages that the process has seen, across
// streams: two descriptions of a table never share a number.
var generations atomic.Uint64

// relations caches the descriptions of one stream by OID, partition leaves
// included. PostgreSQL sends a description before the first change after each
// invalidation, changed or not.
type relations struct {
	byOID map[uint32]*described
	last  *described // the row before was most likely of the same table
}

// described is a relation and whether the handler has seen it.
type described struct {
	rel       *event.Relation
	announced bool
}

func newRelations() relations { return relations{byOID: make(map[uint32]*described)} }

func (r *relations) find(oid uint32) *described {
	if r.last != nil && r.last.rel.OID == oid {
		return r.last
	}
	d := r.byOID[oid]
	if d != nil {
		r.last = d
	}
	return d
}

// store takes a new description. One that is equal to the cached one changes
// nothing, so that handlers re-validate only what changed.
func (r *relations) store(rel *event.Relation) {
	if old := r.byOID[rel.OID]; old != nil && sameRelation(old.rel, rel) {
		return
	}
	r.byOID[rel.OID] = &described{rel: rel}
	r.last = nil
}

func sameRelation(a, b *event.Relation) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && slices.Equal(a.Columns, b.Columns)
}

// pgCatalog undoes pgoutput's abbreviation of that schema's name.
func pgCatalog(schema string) string {
	if schema == "" {
		return "pg_catalog"
	}
	return schema
}

// parseRelation reads a Relation message behind its type byte.
func parseRelation(body []byte) (*event.Relation, bool) {
	c := cursor{b: body}
	rel := &event.Relation{OID: c.uint32(), Namespace: c.cstring(), Name: c.cstring()}
	c.byte() // replica identity: says nothing about inserts
	n := int(c.uint16())
	// A column takes at least 10 bytes: an absurd count must not size an allocation.
	if c.bad || n > len(c.b)/10 {
		return nil, false
	}
	rel.Columns = make([]event.Column, n)
	for i := range rel.Columns {
		flags := c.byte()
		rel.Columns[i] = event.Column{Name: c.cstring(), TypeOID: c.uint32(), TypeMod: int32(c.uint32()), Key: flags&1 != 0}
	}
	rel.Namespace = pgCatalog(rel.Namespace)
	rel.Generation = generations.Add(1)
	return rel, !c.bad && len(c.b) == 0
}
