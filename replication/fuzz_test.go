package replication

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pglogrepl"

	"github.com/postrider/postrider/event"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

// join packs messages for a fuzz input: each behind its length.
func join(messages ...[]byte) (b []byte) {
	for _, m := range messages {
		b = binary.BigEndian.AppendUint16(b, uint16(len(m)))
		b = append(b, m...)
	}
	return b
}

func split(b []byte) (messages [][]byte) {
	for len(b) >= 2 {
		n := min(int(binary.BigEndian.Uint16(b)), len(b)-2)
		messages = append(messages, b[2:2+n])
		b = b[2+n:]
	}
	return messages
}

// oracle is a Handler that checks what any input must keep.
type oracle struct {
	nopHandler
	t    *testing.T
	open event.LSN
	next uint64
	rel  *event.Relation
}

func (o *oracle) Relation(rel *event.Relation) error { o.rel = rel; return nil }

func (o *oracle) Begin(commit event.LSN, _ time.Time, _ uint32) error {
	if o.open != 0 || commit == 0 {
		o.t.Fatalf("begin %s while %s is open", commit, o.open)
	}
	o.open, o.next = commit, 0
	return nil
}

func (o *oracle) Insert(row *event.Row) error {
	if o.open == 0 || row.Position.Commit != o.open || row.Position.Index != o.next {
		o.t.Fatalf("row at %v while %s is open and %d is next", row.Position, o.open, o.next)
	}
	if len(row.Values) != len(row.Relation.Columns) {
		o.t.Fatalf("%d values for %d columns", len(row.Values), len(row.Relation.Columns))
	}
	for _, v := range row.Values {
		if v.Kind != event.Null && v.Kind != event.Text {
			o.t.Fatalf("value of kind %q", rune(v.Kind))
		}
	}
	o.next++
	return nil
}

func (o *oracle) Commit(commit, end event.LSN, _ time.Time) error {
	if commit != o.open || end <= commit {
		o.t.Fatalf("commit %s end %s while %s is open", commit, end, o.open)
	}
	o.open = 0
	return nil
}

// No input panics, and none makes the decoder hand on what is not a transaction.
func FuzzDecode(f *testing.F) {
	begin, rel := wire.Begin(0x10, 1), outbox("id", "payload")
	f.Add(join(begin, rel, row("a", "b"), wire.Commit(0x10, 0x20)))
	f.Add(join(begin, rel, wire.Insert(outboxOID, nil, []byte{}), []byte("U"), []byte("D"), []byte("T"), wire.Commit(0x10, 0x20)))
	f.Add(join([]byte("M\x00x"), begin, []byte("A\x00"), []byte("O"), []byte("Y\x00\x00\x40\x01public\x00mood\x00"), []byte("Z")))
	f.Add(join(begin, wire.Relation(1, "", "t"), wire.Insert(1), wire.Commit(0x10, 0x20), begin))
	f.Add(join(begin, rel, []byte("I\x00\x00\x40\x01N\x00\x02t\xff\xff\xff\xffa")))
	f.Fuzz(func(t *testing.T, in []byte) {
		d := newDecoder(&oracle{t: t})
		for i, m := range split(in) {
			if d.message(event.LSN(i), m) != nil {
				return
			}
			_ = d.oversizedHead(m)
		}
	})
}

// oversizedHead checks only that a cut message does not panic.
func (d *decoder) oversizedHead(m []byte) error {
	probe := newDecoder(&nopHandler{})
	probe.commit = 1
	probe.rels = d.rels
	return probe.oversized(1, len(m), m[:min(len(m), 5)])
}

// Whatever relation this parser accepts, the general one reads alike.
func FuzzRelation(f *testing.F) {
	f.Add(outbox("id", "payload")[1:])
	f.Add(wire.Relation(7, "", "t")[1:])
	f.Add(wire.Relation(7, "My.Schema", `Outbox "Events"`, "Id", `a"b`)[1:])
	f.Fuzz(func(t *testing.T, body []byte) {
		rel, ok := parseRelation(body)
		if !ok {
			return
		}
		var want pglogrepl.RelationMessage
		if err := want.Decode(body); err != nil {
			t.Fatalf("accepted what pglogrepl refuses: %v", err)
		}
		var columns []event.Column
		for _, c := range want.Columns {
			columns = append(columns, event.Column{Name: c.Name, TypeOID: c.DataType, TypeMod: c.TypeModifier, Key: c.Flags&1 != 0})
		}
		if rel.OID != want.RelationID || rel.Name != want.RelationName || rel.Namespace != pgCatalog(want.Namespace) || !slices.Equal(rel.Columns, columns) {
			t.Fatalf("got %+v, want %+v", rel, want)
		}
	})
}

func FuzzTimelineHistory(f *testing.F) {
	f.Add("1\t0/3000000\tno recovery target specified\n\n2\t0/5000000\tbefore 2000-01-01 00:00:00+00\n")
	f.Add("# comment\n1\t0/3000000xyz\t\n")
	f.Fuzz(func(t *testing.T, content string) {
		switches, err := parseTimelineHistory(content)
		if err != nil && switches != nil {
			t.Fatalf("half a history with %v", err)
		}
	})
}
