package reconcile

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/publisher"
	"github.com/postrider/postrider/replication"
	"github.com/postrider/postrider/router"
)

const (
	// DefaultMostRows are kept in memory at once.
	DefaultMostRows = 1_000_000
	// BytesPerRow is about what one takes, with its id and its key's place in the order.
	BytesPerRow = 220
	// DefaultExamples of each kind are listed.
	DefaultExamples = 10
	// DefaultMargin is how much earlier than the window reading begins.
	DefaultMargin = time.Hour

	// mostListed bounds the lists of events that are missing or different, and of strangers.
	mostListed = 1_000_000
	// sameMoment: commits that the server's clock sets less apart may stand in the log the
	// other way round.
	sameMoment = 10 * time.Millisecond
)

// Config says what is compared.
type Config struct {
	ConnString string
	// AppName is the session's application_name.
	AppName string
	// Publisher and Slot name the checkpoint.
	Publisher, Slot string
	// Actor is who asks, for the audit.
	Actor string
	// Replication reaches the server for the history of its timelines, where that is needed.
	Replication  replication.Config
	Publications []string
	Router       router.Config
	Kafka        publisher.Config
	// Progress is told how far it is, often; it may be nil.
	Progress func(Progress)
}

// Progress is how far a comparison is.
type Progress struct {
	Phase string
	// Done of Total; Total is 0 where it is not known.
	Done, Total int64
}

// Options choose the window.
type Options struct {
	// Since (inclusive) and Until (exclusive); the zero value is no bound.
	Since, Until time.Time
	// Margin before Since is read, too: 0 is DefaultMargin.
	Margin time.Duration
	// Aggregate is a key; AggregateType and EventType are as mapped. With any of them nothing
	// is said about events that only a topic has.
	Aggregate, AggregateType, EventType string
	// Topics are read besides those that the rows lead to.
	Topics []string
	// MostDuplicates are no finding: after a crash the relay sends again what it had not
	// written down as published.
	MostDuplicates int64
	// MostRows are kept in memory at once; 0 is DefaultMostRows.
	MostRows int
	// Examples of each kind are listed; 0 is DefaultExamples.
	Examples int
}

func (o Options) withDefaults() Options {
	if o.Margin == 0 {
		o.Margin = DefaultMargin
	}
	if o.MostRows == 0 {
		o.MostRows = DefaultMostRows
	}
	if o.Examples == 0 {
		o.Examples = DefaultExamples
	}
	return o
}

func (o *Options) filtered() bool { return o.Aggregate+o.AggregateType+o.EventType != "" }

// Validate finds what cannot be.
func (o Options) Validate() error {
	var problems []error
	if !o.Until.IsZero() && !o.Since.Before(o.Until) {
		problems = append(problems, fmt.Errorf("the window ends at %s, before it begins at %s", show(o.Until), show(o.Since)))
	}
	if o.Margin < 0 || o.MostRows < 0 || o.Examples < 0 {
		problems = append(problems, errors.New("a margin, a number of rows or of examples is negative"))
	}
	return errors.Join(problems...)
}

func show(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// idHeaders are the headers that carry event ids.
func idHeaders(sources []router.Source) (names []string, err error) {
	for i := range sources {
		name := sources[i].Mapping.EventIDHeader
		if name == "" {
			name = "id"
		}
		if name == router.Disabled {
			return nil, &operr.Error{
				Class: operr.Config, Op: "compare", Subject: fmt.Sprintf("table %s.%s with its topics", sources[i].Schema, sources[i].Table),
				Err:  errors.New("the mapping leaves the event id out of the records, so that nothing tells which record is which row's"),
				Hint: `a mapping with an event_id_header other than "-"`,
			}
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}
