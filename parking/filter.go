package parking

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Filter chooses parked events. All that is set must hold; the zero value chooses all.
type Filter struct {
	IDs           []int64
	EventIDs      []string
	Reason        string
	AggregateType string
	// Aggregate is the key as text.
	Aggregate string
	EventType string
	Topic     string
	// Owner is a name; NoOwner chooses events without one.
	Owner   string
	NoOwner bool
	// OlderThan chooses what was parked so long ago.
	OlderThan time.Duration
	// States to choose from; none: those that are outstanding.
	States []State
}

// Validate finds what cannot hold together.
func (f *Filter) Validate() error {
	var problems []error
	if f.Owner != "" && f.NoOwner {
		problems = append(problems, errors.New("an owner and no owner are asked for together"))
	}
	if f.OlderThan < 0 {
		problems = append(problems, fmt.Errorf("an age of %s is not possible", f.OlderThan))
	}
	known := []State{Parked, Retry, Publishing, Published, Discarded}
	for _, s := range f.States {
		if !slices.Contains(known, s) {
			problems = append(problems, fmt.Errorf("there is no state %q; there are parked, retry, publishing, published and discarded", s))
		}
	}
	return errors.Join(problems...)
}

// Empty says that nothing is asked for but perhaps a state.
func (f *Filter) Empty() bool {
	return len(f.IDs)+len(f.EventIDs) == 0 && f.Reason == "" && f.AggregateType == "" && f.Aggregate == "" &&
		f.EventType == "" && f.Topic == "" && f.Owner == "" && !f.NoOwner && f.OlderThan == 0
}

// where gives the condition and its arguments; $1 is the publisher.
func (f *Filter) where(publisher string) (sql string, args []any) {
	args = []any{publisher}
	parts := []string{"publisher = $1"}
	add := func(format string, value any) {
		args = append(args, value)
		parts = append(parts, fmt.Sprintf(format, len(args)))
	}
	states := f.States
	if len(states) == 0 {
		states = []State{Parked, Retry, Publishing}
	}
	add("state = ANY($%d::text[])", states)
	if len(f.IDs) > 0 {
		add("id = ANY($%d)", f.IDs)
	}
	if len(f.EventIDs) > 0 {
		add("event_id = ANY($%d)", f.EventIDs)
	}
	for _, c := range []struct{ column, value string }{
		{"reason", f.Reason},
		{"aggregate_type", f.AggregateType},
		{"aggregate_id", f.Aggregate},
		{"event_type", f.EventType},
		{"topic", f.Topic},
		{"owner", f.Owner},
	} {
		if c.value != "" {
			add(c.column+" = $%d", c.value)
		}
	}
	if f.NoOwner {
		parts = append(parts, "owner IS NULL")
	}
	if f.OlderThan > 0 {
		add("parked_at <= clock_timestamp() - make_interval(secs => $%d)", f.OlderThan.Seconds())
	}
	return strings.Join(parts, " AND "), args
}
