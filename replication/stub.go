package replication

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// Session is a replication connection that does not stream yet.
type Session struct{}

// System is what IDENTIFY_SYSTEM answers.
type System struct {
	// SystemID tells clusters apart; as text, it does not fit a signed 64-bit integer.
	SystemID string
	Timeline int32
	// XLogPos is the current WAL flush position: not a place to resume from (case C31).
	XLogPos event.LSN
	DBName  string
}

// TimelineSwitch is one line of a timeline history file: Timeline ended at
// Switch, where its successor began.
type TimelineSwitch struct {
	Timeline int32
	Switch   event.LSN
	Reason   string
}

func Connect(ctx context.Context, cfg Config) (*Session, error) { panic("stub") }
func (s *Session) Identify(ctx context.Context) (System, error) { panic("stub") }
func (s *Session) TimelineHistory(ctx context.Context, tli int32) ([]TimelineSwitch, error) {
	panic("stub")
}
func (s *Session) BackendPID() uint32                         { panic("stub") }
func (s *Session) Start(ctx context.Context) (*Stream, error) { panic("stub") }
func (s *Session) Close(ctx context.Context)                  { panic("stub") }

type Stream struct{}

func (st *Stream) Run(ctx context.Context, startConfirmed event.LSN, h Handler) error { panic("stub") }
func (st *Stream) Confirm(lsn event.LSN)                                              { panic("stub") }
func (st *Stream) Confirmed() event.LSN                                               { panic("stub") }
func (st *Stream) LastActivity() time.Time                                            { panic("stub") }
func (st *Stream) Close(ctx context.Context) error                                    { panic("stub") }

func ConnectSQL(ctx context.Context, connString, appName string) (*pgx.Conn, error) { panic("stub") }

// SlotInfo is a row of pg_replication_slots.
type SlotInfo struct {
	Name     string
	Exists   bool
	Plugin   string
	Database string
	// Logical is false for a physical slot.
	Logical   bool
	Temporary bool
	Active    bool
	// ActivePID is zero where nobody holds the slot.
	ActivePID      uint32
	RestartLSN     event.LSN
	ConfirmedFlush event.LSN
	// WALStatus is reserved, extended, unreserved or lost.
	WALStatus string
	// SafeWALSize in bytes; negative or absent: see the manual. HasSafeWALSize is
	// false where max_slot_wal_keep_size does not bound the slot.
	SafeWALSize    int64
	HasSafeWALSize bool
	TwoPhase       bool
	// Failover and Synced are false before 17.
	Failover bool
	Synced   bool
	// InvalidationReason is empty before 17.
	InvalidationReason string
}

func ReadSlot(ctx context.Context, conn *pgx.Conn, name string) (SlotInfo, error) { panic("stub") }

// Table is a table by its exact catalog names.
type Table struct{ Schema, Name string }

// PublishedTable is one table of a publication.
type PublishedTable struct {
	Table
	// RowFilter is the WHERE clause, empty where there is none or before 15.
	RowFilter string
	// Columns is the sorted, comma-separated column list as the catalog has it.
	Columns string
}

// Publication is what the catalog says of one publication.
type Publication struct {
	Name                             string
	OID                              uint32
	AllTables                        bool
	Insert, Update, Delete, Truncate bool
	ViaRoot                          bool
	// Tables are those that rows are published for, sorted: leaves where ViaRoot is false.
	Tables []PublishedTable
}

// Publications is a snapshot that Changed compares.
type Publications []Publication

func ReadPublications(ctx context.Context, conn *pgx.Conn, names []string) (Publications, error) {
	panic("stub")
}

// Changed names the first difference that matters to tables, "" where there is none (rule 7).
func (p Publications) Changed(now Publications, tables []Table) string { panic("stub") }

// CheckConfig says what the start checks look at.
type CheckConfig struct {
	Slot         string
	Publications []string
	Tables       []Table
}

func Check(ctx context.Context, conn *pgx.Conn, cfg CheckConfig) []*operr.Error { panic("stub") }

// PublicationSpec is a publication to be made.
type PublicationSpec struct {
	Name   string
	Tables []Table
}

// EnsurePublication; created tells whether anything was changed.
func EnsurePublication(ctx context.Context, conn *pgx.Conn, spec PublicationSpec) (created bool, err error) {
	panic("stub")
}

// SlotSpec is a slot to be made.
type SlotSpec struct {
	ConnString string
	Slot       string
	// Failover asks for a slot that is synchronised to standbys (17 and newer).
	Failover bool
	// Limit bounds the creation, which waits for every transaction that is open. Zero is 10 s.
	Limit time.Duration
	// Import gets the name of the exported snapshot while it lives, before CreateSlot returns. Optional.
	Import func(ctx context.Context, snapshot string, consistentPoint event.LSN) error
}

// CreatedSlot is a new slot.
type CreatedSlot struct {
	Slot            string
	ConsistentPoint event.LSN
	// Snapshot is pg_current_snapshot() as of the slot's creation.
	Snapshot string
}

func CreateSlot(ctx context.Context, conn *pgx.Conn, spec SlotSpec) (CreatedSlot, error) {
	panic("stub")
}

// PublicationSQL, SlotSQL are plain SQL for `setup --print`.
func PublicationSQL(spec PublicationSpec, partitioned bool) string { panic("stub") }
func SlotSQL(slot string, failover bool) string                    { panic("stub") }
