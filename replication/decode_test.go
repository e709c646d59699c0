package replication

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/event"
	wire "github.com/postrider/postrider/internal/walsendertest"
)

const outboxOID = 16385

// decodeAll feeds messages to a fresh decoder and stops at the first error.
func decodeAll(h Handler, messages ...[]byte) error {
	d := newDecoder(h)
	for i, m := range messages {
		if err := d.message(event.LSN(0x1000+i), m); err != nil {
			return err
		}
	}
	return nil
}

func outbox(columns ...string) []byte {
	return wire.Relation(outboxOID, "public", "outbox", columns...)
}

func row(values ...string) []byte { return wire.Insert(outboxOID, wire.Text(values...)...) }

// trap 1, trap 2: the end LSN is handed on as it is, and rows are told apart by
// their index in the transaction, whatever their own LSN.
func TestDecodeTransactions(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	err := decodeAll(r,
		wire.Begin(0x1617470, 7), outbox("id", "payload"), row("a", "1"), row("b", ""), wire.Insert(outboxOID, []byte("c"), nil),
		wire.Commit(0x1617470, 0x16174A0),
		wire.Begin(0x16174A0, 8), row("d", "4"), wire.Commit(0x16174A0, 0x16174D0),
	)
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, r.lines,
		"begin 0/1617470", "relation public.outbox(id,payload)",
		"insert 0 outbox: id=a payload=1", "insert 1 outbox: id=b payload=", "insert 2 outbox: id=c payload is null",
		"commit 0/1617470 end 0/16174A0",
		"begin 0/16174A0", "insert 0 outbox: id=d payload=4", "commit 0/16174A0 end 0/16174D0")
}

func TestDecodeHandsOnCommitTime(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	var got time.Time
	r.onInsert = func(row *event.Row) error { got = row.CommitTime; return nil }
	if err := decodeAll(r, wire.Begin(9, 1), outbox("id"), row("a")); err != nil {
		t.Fatal(err)
	}
	if !got.Equal(wire.CommitTime) {
		t.Fatalf("got %s, want %s", got, wire.CommitTime)
	}
}

// case C08, trap 27: what is not an insert publishes nothing and is counted.
func TestDecodeIgnoresOtherMessages(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	err := decodeAll(r,
		[]byte("M\x00outside of a transaction"), wire.Begin(0x10, 1), outbox("id"),
		[]byte("O\x00\x00\x00\x00\x00\x00\x00\x01origin\x00"), []byte("Y\x00\x00\x40\x01public\x00mood\x00"),
		row("a"), []byte("U\x00\x00\x40\x01Nwith an unchanged TOAST value"), []byte("D\x00\x00\x40\x01K"), []byte("T\x00\x00\x00\x01"),
		[]byte("M\x01inside"), []byte("A\x00\x00\x00\x01\x00\x00\x00\x02"), wire.Commit(0x10, 0x20),
	)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.rows) != 1 || len(r.ends) != 1 {
		t.Fatalf("%d rows and %d commits, want one each", len(r.rows), len(r.ends))
	}
	for op, n := range map[string]int{OpUpdate: 1, OpDelete: 1, OpTruncate: 1, OpMessage: 2, OpStreamAbort: 1} {
		if r.ignored[op] != n {
			t.Errorf("ignored %s: %d, want %d", op, r.ignored[op], n)
		}
	}
}

type typeRecorder struct {
	*recorder
	types []string
}

func (r *typeRecorder) DefineType(oid uint32, schema, name string) {
	r.types = append(r.types, fmt.Sprintf("%d %s.%s", oid, schema, name))
}

func TestDecodeTellsTypes(t *testing.T) {
	t.Parallel()
	r := &typeRecorder{recorder: newRecorder()}
	if err := decodeAll(r, []byte("Y\x00\x00\x40\x01public\x00mood\x00"), []byte("Y\x00\x00\x00\x17\x00int4\x00")); err != nil {
		t.Fatal(err)
	}
	wantLines(t, r.types, "16385 public.mood", "23 pg_catalog.int4")
}

// case C08, rule 10: whatever could hide an event is a named error with the
// byte and a position.
func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	begin, rel := wire.Begin(0xAB10, 1), outbox("id", "payload")
	tuple := func(b string) []byte { return []byte("I\x00\x00\x40\x01N\x00\x02" + b) }
	tests := map[string]struct {
		last   []byte
		before [][]byte
		want   string
	}{
		"unknown byte":            {[]byte("Z12345"), [][]byte{begin, rel}, `'Z' (0x5A) at LSN 0/1002: unknown message`},
		"binary stream start":     {[]byte("S\x00\x00\x00\x01\x01"), nil, `unknown message`},
		"two-phase prepare":       {[]byte("P\x00"), nil, `unknown message`},
		"empty":                   {nil, nil, `empty pgoutput message`},
		"unchanged in an insert":  {tuple("t\x00\x00\x00\x01au"), [][]byte{begin, rel}, `column "payload" came without its value`},
		"binary value":            {tuple("t\x00\x00\x00\x01ab\x00\x00\x00\x01x"), [][]byte{begin, rel}, `column "payload" has the unknown format`},
		"row before its relation": {row("a", "b"), [][]byte{begin}, `not described`},
		"row outside":             {row("a", "b"), [][]byte{rel}, `outside of a transaction`},
		"fewer columns":           {row("a"), [][]byte{begin, rel}, `1 columns, but 2 were described`},
		"more columns":            {row("a", "b", "c"), [][]byte{begin, rel}, `3 columns, but 2 were described`},
		"bytes behind the row":    {append(row("a", "b"), 'x'), [][]byte{begin, rel}, `1 bytes behind the last column`},
		"length beyond the end":   {tuple("t\xff\xff\xff\xffa"), [][]byte{begin, rel}, `truncated at column "id"`},
		"old tuple in an insert":  {[]byte("I\x00\x00\x40\x01O\x00\x00"), [][]byte{begin, rel}, `malformed`},
		"begin within":            {wire.Begin(0xAB20, 2), [][]byte{begin}, `inside of transaction 0/AB10`},
		"commit of another":       {wire.Commit(0xAB20, 0xAB30), [][]byte{begin}, `while transaction 0/AB10 is open`},
		"commit without begin":    {wire.Commit(0xAB20, 0xAB30), nil, `while transaction 0/0 is open`},
		"end before commit":       {wire.Commit(0xAB10, 0xAB10), [][]byte{begin}, `with end 0/AB10`},
		"absurd column count":     {[]byte("R\x00\x00\x00\x01s\x00t\x00d\xff\xff"), nil, `malformed`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := decodeAll(newRecorder(), append(tt.before, tt.last)...)
			var p *ProtocolError
			if !errors.As(err, &p) || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want a ProtocolError with %q", err, tt.want)
			}
			if p.LSN == 0 {
				t.Fatalf("no position in %v", err)
			}
		})
	}
}

// A message with no position of its own is named by its transaction's.
func TestDecodeNamesTheTransactionWhereTheMessageHasNoPosition(t *testing.T) {
	t.Parallel()
	d := newDecoder(newRecorder())
	if err := d.message(1, wire.Begin(0xAB10, 1)); err != nil {
		t.Fatal(err)
	}
	var p *ProtocolError
	if err := d.message(0, []byte("Z")); !errors.As(err, &p) || p.LSN != 0xAB10 {
		t.Fatalf("got %v", err)
	}
}

// Every cut of every message is an error, never a panic and never a shorter row.
func TestDecodeTruncated(t *testing.T) {
	t.Parallel()
	whole := [][]byte{wire.Begin(0x10, 1), outbox("id", "payload"), row("abc", "def"), wire.Commit(0x10, 0x20)}
	for i, m := range whole {
		for cut := range len(m) {
			messages := append(append([][]byte(nil), whole[:i]...), m[:cut])
			if err := decodeAll(newRecorder(), messages...); err == nil {
				t.Errorf("message %q cut to %d of %d bytes was accepted", m[0], cut, len(m))
			}
		}
	}
	if err := decodeAll(newRecorder(), []byte("Y\x00\x00\x40\x01public\x00mood")); err == nil {
		t.Error("a cut Type message was accepted")
	}
}

// case C07: a row is described by the relation before it; a description that
// is merely repeated is not announced again, a changed one is, with its next row.
func TestDecodeRelationChanges(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	var generations []uint64
	r.onInsert = func(row *event.Row) error {
		generations = append(generations, row.Relation.Generation)
		return nil
	}
	err := decodeAll(r,
		wire.Begin(0x10, 1), outbox("id", "payload"), row("before", "1"), outbox("id", "payload"), row("same", "2"),
		outbox("id", "body"), row("renamed", "3"), outbox("id", "body", "extra"), row("added", "4", "7"), wire.Commit(0x10, 0x20),
		wire.Begin(0x20, 2), outbox("id", "payload"), wire.Commit(0x20, 0x30),
	)
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, r.lines,
		"begin 0/10", "relation public.outbox(id,payload)", "insert 0 outbox: id=before payload=1", "insert 1 outbox: id=same payload=2",
		"relation public.outbox(id,body)", "insert 2 outbox: id=renamed body=3",
		"relation public.outbox(id,body,extra)", "insert 3 outbox: id=added body=4 extra=7", "commit 0/10 end 0/20",
		"begin 0/20", "commit 0/20 end 0/30") // no row of it: nothing to announce
	if generations[0] != generations[1] || generations[1] >= generations[2] || generations[2] >= generations[3] {
		t.Fatalf("generations %v", generations)
	}
}

// Two tables interleaved: partition leaves are cached by OID.
func TestDecodeCachesByOID(t *testing.T) {
	t.Parallel()
	r := newRecorder()
	err := decodeAll(r,
		wire.Begin(0x10, 1), wire.Relation(1, "s", "leaf1", "id"), wire.Relation(2, "s", "leaf2", "id"),
		wire.Insert(1, []byte("a")), wire.Insert(2, []byte("b")), wire.Insert(1, []byte("c")), wire.Commit(0x10, 0x20))
	if err != nil {
		t.Fatal(err)
	}
	wantLines(t, r.lines, "begin 0/10", "relation s.leaf1(id)", "insert 0 leaf1: id=a", "relation s.leaf2(id)",
		"insert 1 leaf2: id=b", "insert 2 leaf1: id=c", "commit 0/10 end 0/20")
}

// The handler's own error comes back as it was.
func TestDecodeReturnsTheHandlersError(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	r := newRecorder()
	r.onInsert = func(*event.Row) error { return boom }
	wantErr(t, decodeAll(r, wire.Begin(0x10, 1), outbox("id"), row("a")), boom)
}
