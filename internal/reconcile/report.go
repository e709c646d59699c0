package reconcile

import "time"

// Report is what a comparison found. Its fields are the contract of --json.
type Report struct {
	// OK says that table and topics agree: nothing is missing, different or out of order, and
	// no more is there twice than was allowed.
	OK        bool   `json:"ok"`
	Publisher string `json:"publisher"`
	// Since and Until are the window; null: no bound. TimeBy says what it goes by in the table.
	Since  *time.Time `json:"since"`
	Until  *time.Time `json:"until"`
	TimeBy string     `json:"time_by"`
	// LateSince: rows of the table that were not visible at that time are compared, too, however
	// old they say they are; null: no earlier run has left its snapshot.
	LateSince *time.Time `json:"late_since"`

	// Rows of the table in the window, and what became of them; each row is in one of the next.
	Rows int64 `json:"rows"`
	// Agreed have a record, the last of which is as it should be.
	Agreed int64 `json:"agreed"`
	// Missing should have a record and have none.
	Missing int64 `json:"missing"`
	// Different have a last record that is not as it should be; DifferentBy counts by field.
	Different   int64            `json:"different"`
	DifferentBy map[string]int64 `json:"different_by"`
	// NotDue have no record, and are not covered by the checkpoint yet.
	NotDue int64 `json:"not_due"`
	// OldestNotDue is the time of the oldest of them.
	OldestNotDue *time.Time `json:"oldest_not_due"`
	// BeforeSlot are from before the slot, and no backfill has published them.
	BeforeSlot int64 `json:"before_slot"`
	// Parked wait in postrider.parked, Discarded were given up there.
	Parked    int64 `json:"parked"`
	Discarded int64 `json:"discarded"`
	// Expired are from before the first record that their topic still has.
	Expired int64 `json:"expired"`
	// Compacted are followed by a later record of their key, in a topic that keeps the last one only.
	Compacted int64 `json:"compacted"`
	// Held lie behind a transaction that somebody has open in their partition's topic.
	Held int64 `json:"held_by_transaction"`
	// WithoutID have no event id, Shared the id of another row: nothing is said about them.
	WithoutID int64 `json:"without_id"`
	Shared    int64 `json:"shared_id"`

	// Duplicates are events with more than one record that no mark explains, DuplicateRecords
	// the records beyond the first.
	Duplicates       int64 `json:"duplicates"`
	DuplicateRecords int64 `json:"duplicate_records"`
	// MostDuplicates were allowed.
	MostDuplicates int64 `json:"duplicates_allowed"`
	// Copies are records that say where they are from.
	Copies Copies `json:"copies"`
	// Healed events had a record that was different and have a right one behind it.
	Healed int64 `json:"healed"`
	// Repaired events carry a payload that was repaired while they were parked.
	Repaired int64 `json:"repaired"`
	// OutOfOrder are events whose first record stands behind that of a later event of the
	// key; OrderBy says by what that is told.
	OutOfOrder int64  `json:"out_of_order"`
	OrderBy    string `json:"order_by"`
	// TopicOnly are events of the window that the table does not have: purged, deleted, or from
	// elsewhere. Null where the comparison was of some events only.
	TopicOnly *int64 `json:"topic_only"`

	Topics []TopicRead `json:"topics"`
	// Findings are some of each kind.
	Findings Findings `json:"findings"`
	// Truncated says that lists had to be cut short; the counts of what is missing and different are right.
	Truncated bool `json:"truncated"`
	// Covered is the snapshot that says which rows are due; where it is "", NotProved says why.
	Covered   string `json:"covered"`
	NotProved string `json:"not_proved,omitempty"`
	Passes    int    `json:"passes"`
	// Seconds it took.
	Seconds float64 `json:"seconds"`
}

// Ref names an event of a table.
type Ref struct{ Table, EventID string }

// Result is a report and what a replay makes good: the events that are missing or different.
type Result struct {
	Report Report
	Repair []Ref
}

// Copies counts records by their marks.
type Copies struct {
	Replayed   int64 `json:"replayed"`
	Backfilled int64 `json:"backfilled"`
	Recovered  int64 `json:"recovered"`
}

// TopicRead is what was read of a topic.
type TopicRead struct {
	Topic string `json:"topic"`
	// Exists is false where the cluster does not know it.
	Exists     bool  `json:"exists"`
	Partitions int32 `json:"partitions"`
	Records    int64 `json:"records"`
	// WithoutID carry no event id, and are nobody's.
	WithoutID int64 `json:"without_id"`
	// Trimmed says that the topic's first records are gone, and From of when the first are.
	Trimmed bool       `json:"trimmed"`
	From    *time.Time `json:"from"`
	// Compacted says that the topic keeps the last record of a key only.
	Compacted bool `json:"compacted"`
	// OpenTransaction says that somebody's transaction holds back the topic's end.
	OpenTransaction bool `json:"open_transaction"`
}

// Findings are examples, in no order.
type Findings struct {
	Missing    []Finding `json:"missing"`
	Different  []Finding `json:"different"`
	Duplicates []Finding `json:"duplicates"`
	OutOfOrder []Finding `json:"out_of_order"`
	TopicOnly  []Finding `json:"topic_only"`
}

// Finding is one event.
type Finding struct {
	EventID string `json:"event_id"`
	// Table is "" where only the topic has the event.
	Table string `json:"table,omitempty"`
	Topic string `json:"topic,omitempty"`
	// Partition and Offset are those of its last record; null where there is none.
	Partition *int32 `json:"partition"`
	Offset    *int64 `json:"offset"`
	// Time is the row's or the record's; null where it is not known.
	Time *time.Time `json:"time"`
	// Fields that differ; headers by their names, as in "header event_type".
	Fields []string `json:"fields,omitempty"`
	// Records counts duplicates.
	Records int `json:"records,omitempty"`
	// After is the later event that it stands behind.
	After string `json:"after,omitempty"`
	// Why says what is special about a missing event.
	Why string `json:"why,omitempty"`
}
