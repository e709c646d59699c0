package oracle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/postrider/postrider/event"
)

// Row is an inserted row as PostgreSQL's own text has it.
type Row struct {
	Schema, Table string
	columns       []*pglogrepl.RelationMessageColumn
	values        []*pglogrepl.TupleDataColumn
}

// Get gives a column's text; nil for NULL and for a column that is not there.
// The bytes stay valid.
func (r Row) Get(name string) []byte {
	for i, c := range r.columns {
		if c.Name == name && i < len(r.values) && r.values[i].DataType == pglogrepl.TupleDataTypeText {
			if r.values[i].Data == nil {
				return []byte{}
			}
			return r.values[i].Data
		}
	}
	return nil
}

// CommitReader reads what was committed, in commit order, from a slot of its
// own, which must be older than the first event. It decodes with pglogrepl's
// general parser, not with the decoder that is judged.
type CommitReader struct {
	DSN         string
	Slot        string // of pgoutput
	Publication string
	// Map says what a row has to become; ok false leaves the row out.
	Map func(Row) (ev Event, ok bool)

	relations map[uint32]*pglogrepl.RelationMessage
	last      event.LSN // commit LSN of the last transaction that was handed on
	open      Order
	inside    bool // between Begin and Commit
	skip      bool // a transaction that was handed on by an earlier call
}

// CreateSlot makes the slot that a CommitReader reads.
func CreateSlot(ctx context.Context, dsn, slot string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "SELECT pg_create_logical_replication_slot($1, 'pgoutput')", slot)
	return err
}

// CurrentLSN is the position up to which a server has everything on disk.
func CurrentLSN(ctx context.Context, dsn string) (event.LSN, error) {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return 0, err
	}
	defer conn.Close(ctx)
	var text string
	if err := conn.QueryRow(ctx, "SELECT pg_current_wal_flush_lsn()::text").Scan(&text); err != nil {
		return 0, err
	}
	return event.ParseLSN(text)
}

// ReadAll reports to o everything that is committed now.
func (r *CommitReader) ReadAll(ctx context.Context, o *Oracle) error {
	upTo, err := CurrentLSN(ctx, r.DSN)
	if err != nil {
		return err
	}
	return r.ReadTo(ctx, upTo, o)
}

// ReadTo reports to o what was committed up to an LSN and not yet reported by
// an earlier call, and moves the slot on.
func (r *CommitReader) ReadTo(ctx context.Context, upTo event.LSN, o *Oracle) error {
	conn, err := replicationConn(ctx, r.DSN)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = pglogrepl.StartReplication(ctx, conn, r.Slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: []string{
		"proto_version '1'", fmt.Sprintf("publication_names '%s'", pgx.Identifier{r.Publication}.Sanitize()),
	}})
	if err != nil {
		return fmt.Errorf("read commits from slot %s: %w", r.Slot, err)
	}
	r.relations, r.inside = map[uint32]*pglogrepl.RelationMessage{}, false
	var seen event.LSN // everything below has been received
	for seen < upTo || r.inside {
		seen, err = r.receive(ctx, conn, seen, o)
		if err != nil {
			return fmt.Errorf("read commits from slot %s: %w", r.Slot, err)
		}
	}
	if err := status(ctx, conn, seen, false); err != nil {
		return err
	}
	_, err = pglogrepl.SendStandbyCopyDone(ctx, conn)
	return err
}

// replicationConn pins the output settings: the oracle must not inherit a role's.
func replicationConn(ctx context.Context, dsn string) (*pgconn.PgConn, error) {
	config, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	for name, value := range map[string]string{
		"replication": "database", "client_encoding": "UTF8", "DateStyle": "ISO", "IntervalStyle": "postgres",
		"bytea_output": "hex", "extra_float_digits": "3", "TimeZone": "UTC", "application_name": "oracle",
	} {
		config.RuntimeParams[name] = value
	}
	return pgconn.ConnectConfig(ctx, config)
}

// receive handles one message and returns the position up to which everything
// has been received. When nothing comes it asks the server where it is.
func (r *CommitReader) receive(ctx context.Context, conn *pgconn.PgConn, seen event.LSN, o *Oracle) (event.LSN, error) {
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	raw, err := conn.ReceiveMessage(short)
	if pgconn.Timeout(err) && ctx.Err() == nil {
		return seen, status(ctx, conn, r.last, true)
	}
	if err != nil {
		return seen, err
	}
	switch m := raw.(type) {
	case *pgproto3.ErrorResponse:
		return seen, pgconn.ErrorResponseToPgError(m)
	case *pgproto3.CopyData:
		return r.copyData(ctx, conn, m.Data, seen, o)
	}
	return seen, nil
}

func (r *CommitReader) copyData(ctx context.Context, conn *pgconn.PgConn, data []byte, seen event.LSN, o *Oracle) (event.LSN, error) {
	switch data[0] {
	case pglogrepl.PrimaryKeepaliveMessageByteID:
		k, err := pglogrepl.ParsePrimaryKeepaliveMessage(data[1:])
		if err != nil {
			return seen, err
		}
		if !r.inside {
			seen = max(seen, event.LSN(k.ServerWALEnd))
		}
		if k.ReplyRequested {
			err = status(ctx, conn, r.last, false)
		}
		return seen, err
	case pglogrepl.XLogDataByteID:
		x, err := pglogrepl.ParseXLogData(data[1:])
		if err != nil {
			return seen, err
		}
		end, err := r.change(x.WALData, o)
		return max(seen, end), err
	}
	return seen, fmt.Errorf("unknown message %q", data[0])
}

// change handles one pgoutput message; at a commit it returns the end LSN.
func (r *CommitReader) change(data []byte, o *Oracle) (event.LSN, error) {
	m, err := pglogrepl.Parse(data)
	if err != nil {
		return 0, err
	}
	switch m := m.(type) {
	case *pglogrepl.RelationMessage:
		r.relations[m.RelationID] = m
	case *pglogrepl.BeginMessage:
		r.open = Order{Commit: event.LSN(m.FinalLSN)}
		r.inside, r.skip = true, r.open.Commit <= r.last
	case *pglogrepl.CommitMessage:
		r.inside = false
		r.last = max(r.last, event.LSN(m.CommitLSN))
		return event.LSN(m.TransactionEndLSN), nil
	case *pglogrepl.InsertMessage:
		return 0, r.insert(m, o)
	}
	return 0, nil
}

func (r *CommitReader) insert(m *pglogrepl.InsertMessage, o *Oracle) error {
	rel := r.relations[m.RelationID]
	if rel == nil {
		return errors.New("a row of a relation that was not described")
	}
	at := r.open
	r.open.Index++
	if r.skip {
		return nil
	}
	row := Row{Schema: rel.Namespace, Table: rel.RelationName, columns: rel.Columns, values: m.Tuple.Columns}
	if ev, ok := r.Map(row); ok {
		o.Committed(at, ev)
	}
	return nil
}

func status(ctx context.Context, conn *pgconn.PgConn, at event.LSN, reply bool) error {
	lsn := pglogrepl.LSN(at)
	return pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{
		WALWritePosition: lsn, WALFlushPosition: lsn, WALApplyPosition: lsn, ReplyRequested: reply,
	})
}
