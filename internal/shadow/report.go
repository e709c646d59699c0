package shadow

import (
	"slices"
	"time"
)

// The fields in which a record can differ, as DifferentBy counts and samples name them. A header's is FieldHeader with its name.
const (
	FieldTopic      = "topic"
	FieldPartition  = "partition"
	FieldKey        = "key"
	FieldValue      = "value"
	FieldHeader     = "header "
	FieldOrder      = "order"
	FieldMissing    = "missing"
	FieldUnexpected = "unexpected"
)

// Report is what a comparison found. Its fields are a contract of --json.
type Report struct {
	Began time.Time `json:"began"`
	Ended time.Time `json:"ended"`
	// From is the position at which the stream began.
	From string `json:"from"`
	// Streamed events came on the stream and would be published; Refused ones would not.
	Streamed int64 `json:"streamed"`
	Refused  int64 `json:"refused"`
	// Records were read from the topics since the beginning.
	Records int64 `json:"records"`
	// Compared events were found on a topic: Equal in all fields, or Different in some.
	Compared    int64            `json:"compared"`
	Equal       int64            `json:"equal"`
	Different   int64            `json:"different"`
	DifferentBy map[string]int64 `json:"different_by"`
	// Missing events had no record within the patience; those of them that came Late were not compared. Waiting ones have none
	// yet: the end came first.
	Missing int64 `json:"missing"`
	Late    int64 `json:"late"`
	Waiting int64 `json:"waiting"`
	// Duplicates are further records of an event.
	Duplicates int64 `json:"duplicates"`
	// OutOfOrder events came behind a later one of their key.
	OutOfOrder int64 `json:"out_of_order"`
	// Before are records of rows from before the beginning. Unexpected ones have no row, and WithoutID no id.
	Before     int64 `json:"before"`
	Unexpected int64 `json:"unexpected"`
	WithoutID  int64 `json:"without_id"`
	// SharedIDs are rows that have the id of another one.
	SharedIDs int64    `json:"shared_ids"`
	Samples   []Sample `json:"samples"`
	Notes     []string `json:"notes"`

	kept map[string]int
}

// Sample is one difference. What is private (payload, header values) is described by its size, unless it was asked for.
type Sample struct {
	Event     string `json:"event_id"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Field     string `json:"field"`
	Ours      string `json:"ours"`
	Theirs    string `json:"theirs"`
}

func newReport(now time.Time) *Report {
	return &Report{Began: now.UTC(), DifferentBy: map[string]int64{}, Samples: []Sample{}, Notes: []string{}, kept: map[string]int{}}
}

// Agrees says that nothing was found that a consumer would notice at a change of publishers. Copies of before, duplicates and
// shared ids are told, and are no difference.
func (r *Report) Agrees() bool {
	return r.Different == 0 && r.Missing == 0 && r.Waiting == 0 && r.OutOfOrder == 0 && r.Unexpected == 0 && r.Refused == 0 && r.WithoutID == 0
}

func (r *Report) note(text string) {
	const most = 20
	if len(r.Notes) < most && !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}
