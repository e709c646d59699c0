package replication

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/postrider/postrider/event"
)

// decoder walks pgoutput messages in place and calls the handler. Begin, Insert
// and Commit allocate nothing: a general parser costs about a fifth of all CPU
// of a drain (docs/design.md).
type decoder struct {
	h    Handler
	rels relations

	// The open transaction; commit is zero where none is open.
	commit     event.LSN
	commitTime time.Time
	index      uint64 // of the next received insert, routed or not (rule 10)

	row event.Row // handed out, reused
}

func newDecoder(h Handler) *decoder { return &decoder{h: h, rels: newRelations()} }

// message handles one pgoutput message. start is the position it came with,
// for errors only: positions of changes neither rise nor are unique (trap 2).
func (d *decoder) message(start event.LSN, msg []byte) error {
	if len(msg) == 0 {
		return &ProtocolError{LSN: d.where(start), Problem: "empty pgoutput message"}
	}
	kind, body := msg[0], msg[1:]
	switch kind {
	case msgInsert:
		return d.insert(start, body)
	case msgBegin:
		return d.begin(start, body)
	case msgCommit:
		return d.end(start, body)
	case msgRelation:
		rel, ok := parseRelation(body)
		if !ok {
			return d.broken(kind, start, "truncated or malformed")
		}
		d.rels.store(rel)
		return nil
	case msgType:
		return d.defineType(start, body)
	case msgOrigin:
		return nil // it does not change what an insert means
	default:
		return d.rare(kind, start)
	}
}

func (d *decoder) defineType(start event.LSN, b []byte) error {
	c := cursor{b: b}
	oid, schema, name := c.uint32(), c.cstring(), c.cstring()
	if c.bad || len(c.b) != 0 {
		return d.broken(msgType, start, "truncated or malformed")
	}
	if t, ok := d.h.(TypeDefiner); ok {
		t.DefineType(oid, pgCatalog(schema), name)
	}
	return nil
}

// rare counts what publishes nothing. Everything else is a hard error: a
// message that is skipped could have been an event.
func (d *decoder) rare(kind byte, start event.LSN) error {
	switch kind {
	case msgUpdate:
		d.h.Ignored(OpUpdate)
	case msgDelete:
		d.h.Ignored(OpDelete)
	case msgTruncate:
		d.h.Ignored(OpTruncate)
	case msgMessage:
		// Sent inside and outside of transactions, and even after a rollback.
		d.h.Ignored(OpMessage)
	case msgStreamAbort:
		// PostgreSQL 18 sends it to clients that never asked for streaming (case C08).
		d.h.Ignored(OpStreamAbort)
	default:
		return d.broken(kind, start, "unknown message; it is not skipped, because it could be an event")
	}
	return nil
}

func (d *decoder) begin(start event.LSN, b []byte) error {
	if len(b) != 8+8+4 {
		return d.broken(msgBegin, start, "truncated or malformed")
	}
	if d.commit != 0 {
		return d.broken(msgBegin, start, "a transaction begins inside of transaction "+d.commit.String())
	}
	commit := event.LSN(binary.BigEndian.Uint64(b))
	if commit == 0 {
		return d.broken(msgBegin, start, "transaction without a commit position")
	}
	d.commit, d.index = commit, 0
	d.commitTime = fromPGMicros(binary.BigEndian.Uint64(b[8:]))
	return d.h.Begin(commit, d.commitTime, binary.BigEndian.Uint32(b[16:]))
}

func (d *decoder) end(start event.LSN, b []byte) error {
	if len(b) != 1+8+8+8 {
		return d.broken(msgCommit, start, "truncated or malformed")
	}
	commit := event.LSN(binary.BigEndian.Uint64(b[1:]))
	end := event.LSN(binary.BigEndian.Uint64(b[9:]))
	if commit != d.commit || end <= commit {
		return d.broken(msgCommit, start,
			fmt.Sprintf("commits %s with end %s while transaction %s is open", commit, end, d.commit))
	}
	at := d.commitTime
	d.commit = 0
	return d.h.Commit(commit, end, at)
}

func (d *decoder) insert(start event.LSN, b []byte) error {
	if len(b) < 4+1+2 || b[4] != 'N' {
		return d.broken(msgInsert, start, "truncated or malformed")
	}
	if d.commit == 0 {
		return d.broken(msgInsert, start, "row outside of a transaction")
	}
	rel, err := d.relation(start, binary.BigEndian.Uint32(b))
	if err != nil {
		return err
	}
	if problem := d.tuple(rel, b[5:]); problem != "" {
		return d.broken(msgInsert, start, "row of "+rel.String()+": "+problem)
	}
	d.row.Relation = rel
	d.row.Position = event.Position{Commit: d.commit, Index: d.index}
	d.row.CommitTime = d.commitTime
	d.index++
	return d.h.Insert(&d.row)
}

// relation finds the description that precedes the row, and announces it first
// where the handler has not seen it.
func (d *decoder) relation(start event.LSN, oid uint32) (*event.Relation, error) {
	desc := d.rels.find(oid)
	if desc == nil {
		return nil, d.broken(msgInsert, start, fmt.Sprintf("row of relation OID %d, which was not described", oid))
	}
	if !desc.announced {
		if err := d.h.Relation(desc.rel); err != nil {
			return nil, err
		}
		desc.announced = true
	}
	return desc.rel, nil
}

// tuple reads the columns into d.row.Values; they alias b. It gives "" or the problem.
func (d *decoder) tuple(rel *event.Relation, b []byte) string {
	n := int(binary.BigEndian.Uint16(b))
	b = b[2:]
	if n != len(rel.Columns) {
		return fmt.Sprintf("%d columns, but %d were described", n, len(rel.Columns))
	}
	values := d.row.Values[:0]
	for i := range n {
		if len(b) == 0 {
			return truncatedAt(rel, i)
		}
		kind := event.Kind(b[0])
		b = b[1:]
		switch kind {
		case event.Null:
			values = append(values, event.Value{Kind: event.Null})
		case event.Text:
			if len(b) < 4 {
				return truncatedAt(rel, i)
			}
			size := int(binary.BigEndian.Uint32(b))
			if size > len(b)-4 {
				return truncatedAt(rel, i)
			}
			values = append(values, event.Value{Kind: event.Text, Data: b[4 : 4+size : 4+size]})
			b = b[4+size:]
		case event.Unchanged:
			// Only an UPDATE leaves a TOASTed value out; null or empty it must not become (rule 10).
			return fmt.Sprintf("column %q came without its value", rel.Columns[i].Name)
		default:
			return fmt.Sprintf("column %q has the unknown format %q", rel.Columns[i].Name, rune(kind))
		}
	}
	d.row.Values = values
	if len(b) != 0 {
		return fmt.Sprintf("%d bytes behind the last column", len(b))
	}
	return ""
}

func truncatedAt(rel *event.Relation, column int) string {
	return fmt.Sprintf("truncated at column %q", rel.Columns[column].Name)
}

func (d *decoder) broken(kind byte, start event.LSN, problem string) error {
	return &ProtocolError{Message: kind, LSN: d.where(start), Problem: problem}
}

// where is the message's own position, or the open transaction's: some messages come with 0/0.
func (d *decoder) where(start event.LSN) event.LSN {
	if start == 0 {
		return d.commit
	}
	return start
}

// oversized handles a message of size bytes of which only head was read. What
// publishes nothing is dropped; a row goes to the handler's decision.
func (d *decoder) oversized(start event.LSN, size int, head []byte) error {
	if len(head) == 0 {
		return d.broken(0, start, "message too large and empty")
	}
	switch kind := head[0]; kind {
	case msgInsert:
		return d.insertTooLarge(start, size, head[1:])
	case msgUpdate, msgDelete, msgTruncate, msgMessage, msgStreamAbort:
		return d.rare(kind, start)
	default:
		return d.broken(kind, start, fmt.Sprintf("message of %d bytes", size))
	}
}

func (d *decoder) insertTooLarge(start event.LSN, size int, head []byte) error {
	if len(head) < 4 || d.commit == 0 {
		return d.broken(msgInsert, start, "truncated, or row outside of a transaction")
	}
	rel, err := d.relation(start, binary.BigEndian.Uint32(head))
	if err != nil {
		return err
	}
	refusal := &event.Refusal{
		Reason: event.ReasonTooLarge, Table: rel.String(),
		Position: event.Position{Commit: d.commit, Index: d.index},
		Detail:   fmt.Sprintf("the row is %d bytes on the wire, above max_row_bytes", size),
	}
	d.index++
	if r, ok := d.h.(RowRefuser); ok {
		return r.RowTooLarge(refusal, rel)
	}
	return refusal
}
