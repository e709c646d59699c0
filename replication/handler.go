package replication

import (
	"time"

	"github.com/postrider/postrider/event"
)

// Handler receives committed transactions in commit order, on the one goroutine
// that reads the socket. A call may block (a full window): that stops reading,
// never feedback. An error ends the stream with that error in its chain.
//
// A transaction is handed on while it is still arriving: what was received
// before the stream broke is not followed by a Commit, and comes again from its
// Begin on the next stream.
type Handler interface {
	// Relation comes before the first row of a table on this stream, and again
	// before the first row after its description changed.
	Relation(rel *event.Relation) error
	// Begin opens a transaction. commit is where its commit record starts.
	Begin(commit event.LSN, commitTime time.Time, xid uint32) error
	// Insert hands on one inserted row, valid until the call returns.
	Insert(row *event.Row) error
	// Ignored counts what publishes nothing: one of the Op constants.
	Ignored(op string)
	// Commit closes the transaction. end is pgoutput's end_lsn, the only
	// position of a transaction that may be confirmed (trap 1).
	Commit(commit, end event.LSN, commitTime time.Time) error
	// KeepAlive is the server's WAL end as a keepalive gave it (rule 10); it may
	// come between the rows of a transaction.
	KeepAlive(walEnd event.LSN)
	// InputDrained says that all received input was handed on; it comes before
	// each read that may block.
	InputDrained()
}

// RowRefuser may be implemented by a Handler that wants to decide on rows above
// Config.MaxRowBytes. Without it such a row ends the stream.
type RowRefuser interface {
	// RowTooLarge gets a row that was not read: the refusal has table, position
	// and size. Nil skips the row (its index stays taken), an error ends the stream.
	RowTooLarge(refusal *event.Refusal, rel *event.Relation) error
}

// TypeDefiner may be implemented by a Handler that wants to know types which are
// not built in. PostgreSQL names them before the first relation that uses them.
type TypeDefiner interface {
	DefineType(oid uint32, schema, name string)
}

// What Handler.Ignored is called with. The names are the metric label "op".
const (
	OpUpdate      = "update"
	OpDelete      = "delete"
	OpTruncate    = "truncate"
	OpMessage     = "message"
	OpStreamAbort = "stream_abort"
)
