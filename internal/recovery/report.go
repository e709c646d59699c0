package recovery

import (
	"time"

	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/replication"
)

// Report is what `recover` says. Its JSON fields are a documented contract: LSNs are in
// PostgreSQL's spelling, times are RFC 3339.
type Report struct {
	// DryRun: nothing was changed.
	DryRun    bool      `json:"dry_run"`
	Evidence  Evidence  `json:"evidence"`
	Diagnosis Diagnosis `json:"diagnosis"`
	// Task is the task's number; 0 in a dry run.
	Task int64 `json:"task,omitempty"`
	// Compared says that this call has read the topics, and called Options.TopicOnly for all it was to.
	Compared bool `json:"-"`
	// Comparison is null where nothing was compared.
	Comparison *Comparison `json:"comparison"`
	// ToPublish counts what is missing, by topic and types.
	ToPublish []Group `json:"to_publish"`
	// Order says what the order of publishing rests on.
	Order string `json:"order,omitempty"`
	// Published were acknowledged, by all attempts of the task together. Parked were refused, or stand
	// behind a parked event of their key, and stand in postrider.parked now. Gone are rows that
	// were deleted while it ran.
	Published int64 `json:"published"`
	Parked    int64 `json:"parked"`
	Gone      int64 `json:"gone"`
	// PossibleDuplicates were sent twice since the broker had lost the producer's state.
	PossibleDuplicates int64 `json:"possible_duplicates"`
	// Position is where the relay goes on; "" until it is done.
	Position string `json:"position,omitempty"`
	// Unknown are sentences about what cannot be known.
	Unknown []string `json:"unknown"`
}

// Group counts events of one topic and kind. Topic is "" where the router refuses them.
type Group struct {
	Table         string `json:"table"`
	Topic         string `json:"topic"`
	AggregateType string `json:"aggregate_type,omitempty"`
	EventType     string `json:"event_type,omitempty"`
	Events        int64  `json:"events"`
}

// Evidence is what was found.
type Evidence struct {
	Publisher string       `json:"publisher"`
	Stored    *StoredFacts `json:"stored"`
	Slot      SlotFacts    `json:"slot"`
	Server    ServerFacts  `json:"server"`
	Parked    int64        `json:"parked"`
	OpenTask  *OpenTask    `json:"open_task"`
}

// StoredFacts is the row of the checkpoint.
type StoredFacts struct {
	Slot       string     `json:"slot"`
	SystemID   string     `json:"system_id"`
	Timeline   int32      `json:"timeline"`
	Confirmed  string     `json:"confirmed_lsn"`
	CommitTime *time.Time `json:"commit_time"`
	Snapshot   string     `json:"snapshot,omitempty"`
	Idle       bool       `json:"idle"`
	UpdatedAt  time.Time  `json:"updated_at"`
}

// SlotFacts is the slot as the server has it.
type SlotFacts struct {
	Name      string `json:"name"`
	Exists    bool   `json:"exists"`
	Plugin    string `json:"plugin,omitempty"`
	Database  string `json:"database,omitempty"`
	Confirmed string `json:"confirmed_lsn,omitempty"`
	Restart   string `json:"restart_lsn,omitempty"`
	WALStatus string `json:"wal_status,omitempty"`
	Reason    string `json:"invalidation_reason,omitempty"`
	Failover  bool   `json:"failover,omitempty"`
	ActivePID uint32 `json:"active_pid,omitempty"`
}

// ServerFacts is the server that was reached.
type ServerFacts struct {
	Database string `json:"database"`
	SystemID string `json:"system_id"`
	Timeline int32  `json:"timeline"`
	WALEnd   string `json:"wal_end"`
	// History are the ends of earlier timelines, where the row is of one of them.
	History []TimelineEnd `json:"history,omitempty"`
}

// TimelineEnd is where a timeline ended.
type TimelineEnd struct {
	Timeline int32  `json:"timeline"`
	End      string `json:"end"`
}

// OpenTask is a recovery that was begun and has not ended.
type OpenTask struct {
	ID        int64     `json:"id"`
	State     string    `json:"state"`
	Step      string    `json:"step"`
	Done      int64     `json:"done"`
	Total     int64     `json:"total"`
	CreatedAt time.Time `json:"created_at"`
	CreatedBy string    `json:"created_by"`
}

func evidenceOf(f *Facts) Evidence {
	e := Evidence{
		Publisher: f.Publisher, Slot: evidenceOfSlot(f.Slot), Parked: f.Parked,
		Server: ServerFacts{Database: f.Database, SystemID: f.System.ID, Timeline: f.System.Timeline, WALEnd: f.WALEnd.String()},
	}
	for _, h := range f.History {
		e.Server.History = append(e.Server.History, TimelineEnd{Timeline: h.Timeline, End: h.End.String()})
	}
	if s := f.Stored; s != nil {
		e.Stored = &StoredFacts{
			Slot: s.Slot, SystemID: s.SystemID, Timeline: s.Timeline, Confirmed: s.Confirmed.String(),
			Snapshot: s.Snapshot, Idle: s.Idle, UpdatedAt: s.UpdatedAt,
		}
		if !s.CommitTime.IsZero() {
			e.Stored.CommitTime = &s.CommitTime
		}
	}
	return e
}

func evidenceOfSlot(s replication.SlotInfo) SlotFacts {
	facts := SlotFacts{Name: s.Name, Exists: s.Exists}
	if !s.Exists {
		return facts
	}
	text := func(lsn event.LSN) string {
		if lsn == 0 {
			return ""
		}
		return lsn.String()
	}
	facts.Plugin, facts.Database, facts.WALStatus, facts.Reason = s.Plugin, s.Database, s.WALStatus, s.InvalidationReason
	facts.Confirmed, facts.Restart = text(s.ConfirmedFlush), text(s.RestartLSN)
	facts.Failover, facts.ActivePID = s.Failover, s.ActivePID
	return facts
}

func evidenceOfTask(t *task) *OpenTask {
	return &OpenTask{
		ID: t.ID, State: t.State, Step: string(t.Detail.Step), Done: t.Done, Total: t.Total, CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy,
	}
}

// unknown says what cannot be known, of what is known so far.
func unknown(f *Facts, d Diagnosis, o Options, c *Comparison) []string {
	list := []string{}
	add := func(text string) { list = append(list, text) }
	if d.Method == NewSlot {
		add("events whose rows were deleted before they were published: only the WAL of a slot that can be used has them")
	} else {
		add("events from before the slot's position whose rows were deleted before they were published")
	}
	add("events that went to topics which the present routes do not give")
	if d.Scope == AllRows && o.Since == nil {
		add("rows that were never this publisher's to publish (from before its first set-up) look like missing ones")
	}
	if o.Since != nil {
		add("rows older than --since " + o.Since.UTC().Format(time.RFC3339) + " were not compared, and count as published")
	}
	if o.WithoutTopics {
		add("which candidates their topics have: they were not read, and events are published twice")
	}
	if o.ScanFrom != nil {
		add("records older than --scan-from " + o.ScanFrom.UTC().Format(time.RFC3339) + ": what stands there only is published twice")
	}
	if c != nil && (c.WithoutID > 0 || c.Shared > 0) {
		add("rows without an event id, and rows that share theirs with another: they were left out")
	}
	if c != nil && c.Late > 0 {
		add("whether consumers mind: some missing events come behind later ones of their key")
	}
	if f.Stored == nil {
		add("up to where events were published: no position is stored")
	}
	return list
}
