package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/internal/oracle"
)

// Result is the verdict; its fields are a contract of --json. Counts are of
// events where nothing else is said.
type Result struct {
	// Kept says that the promise held: no fault and no doubt.
	Kept bool `json:"kept"`

	Committed  int `json:"committed"`
	Delivered  int `json:"delivered"`
	Lost       int `json:"lost"`
	OutOfOrder int `json:"out_of_order"`
	Phantom    int `json:"phantom"`
	WrongBytes int `json:"wrong_bytes"`
	// UnsafeConfirmations counts events that the slot was confirmed past before
	// the broker had them; Samples is how often that was looked at.
	UnsafeConfirmations int `json:"unsafe_confirmations"`
	Samples             int `json:"samples"`
	// Duplicates are further copies: allowed after a kill, and no fault.
	Duplicates int `json:"duplicates"`

	Transactions int `json:"transactions"`
	// RolledBack counts events of transactions and savepoints that were rolled back.
	RolledBack int `json:"rolled_back"`
	BrokerCuts int `json:"broker_cuts"`
	RelayKills int `json:"relay_kills"`

	Seconds  float64 `json:"seconds"`
	Postgres string  `json:"postgres"`
	Broker   string  `json:"broker"`
	// Folder is what --keep left.
	Folder string `json:"folder,omitempty"`
	// Findings are examples of each fault, and every doubt.
	Findings []Finding `json:"findings,omitempty"`
}

// Finding is a fault or a doubt in words.
type Finding struct {
	// Kind is the fault as the verdict names it, or "doubt": a reason why the run
	// proves less than it should.
	Kind string `json:"kind"`
	Text string `json:"text"`
}

const kindDoubt = "doubt"

// examples of each kind of fault are enough to go by.
const examples = 3

// judge makes the verdict from what the witness found; the tally only vouches
// that the witness saw as much as the shop did.
func (d *demo) judge(ctx context.Context, w *witness) (*Result, error) {
	v, err := w.verdict(ctx)
	if err != nil {
		return nil, fmt.Errorf("collect the evidence: %w", err)
	}
	r := newResult(v, d.tally.now(), d.tally.allDoubts())
	r.Postgres, r.Broker = d.stack.postgresName(), d.stack.broker.String()
	if d.opts.Keep {
		r.Folder = d.stack.root
	}
	return r, nil
}

// newResult is pure: evidence in, verdict out.
func newResult(v oracle.Verdict, c counts, doubts []string) *Result {
	r := &Result{
		Committed: v.Committed, Delivered: v.Delivered, Lost: v.Lost, OutOfOrder: v.OutOfOrder, Phantom: v.Phantom,
		WrongBytes: v.WrongBytes, UnsafeConfirmations: v.UnsafeAcks, Samples: v.Samples, Duplicates: v.Duplicates,
		Transactions: c.Transactions, RolledBack: c.Phantoms, BrokerCuts: c.BrokerCuts, RelayKills: c.RelayKills,
	}
	for _, detail := range v.Details {
		kind, text, _ := strings.Cut(detail, ": ")
		if kind == "unsafe ack" { // the oracle's word for it
			kind = "unsafe confirmation"
		}
		r.Findings = append(r.Findings, Finding{kind, text})
	}
	for _, doubt := range append(doubts, gaps(v, c)...) {
		r.Findings = append(r.Findings, Finding{kindDoubt, doubt})
	}
	// Every fault and every doubt is a finding; both are asked, so that a fault
	// without words counts as well.
	r.Kept = v.Faults() == 0 && len(r.Findings) == 0
	return r
}

// gaps are the ways in which a verdict without faults proves nothing.
func gaps(v oracle.Verdict, c counts) []string {
	var all []string
	if v.Committed == 0 {
		all = append(all, "nothing was committed")
	}
	if v.Committed != c.Committed {
		all = append(all, fmt.Sprintf("the log holds %d events, the shop has committed %d", v.Committed, c.Committed))
	}
	if v.Samples == 0 {
		all = append(all, "the slot was never seen together with the broker, so confirmations were not checked")
	}
	return all
}

// Err is nil when the promise held; its class gives the exit code.
func (r *Result) Err() error {
	if r.Kept {
		return nil
	}
	var why []string
	for _, row := range r.rows() {
		if row.fault && row.count > 0 {
			why = append(why, fmt.Sprintf("%s %d", row.name, row.count))
		}
	}
	for _, f := range r.Findings {
		if f.Kind == kindDoubt {
			why = append(why, f.Text)
		}
	}
	return &operr.Error{
		Class: operr.Internal, Op: "demo", Err: errors.New("the promise did not hold: " + strings.Join(why, "; ")),
		Hint: "postrider demo --keep, and the relay's log in the folder that it leaves",
	}
}

// row is a line of the verdict table.
type row struct {
	name  string
	count int
	// fault says that anything but 0 breaks the promise.
	fault   bool
	meaning string
}

func (r *Result) rows() []row {
	return []row{
		{"committed", r.Committed, false, fmt.Sprintf("events in %s committed transactions", number(r.Transactions))},
		{"delivered", r.Delivered, false, "of them found in Kafka"},
		{"lost", r.Lost, true, "committed, and not in Kafka"},
		{"out of order", r.OutOfOrder, true, "overtaken by a later event of the same key"},
		{"phantom", r.Phantom, true, fmt.Sprintf("in Kafka, and never committed (%s were rolled back)", number(r.RolledBack))},
		{"wrong bytes", r.WrongBytes, true, "key, payload, header or topic changed on the way"},
		{"unsafe confirmations", r.UnsafeConfirmations, true, fmt.Sprintf("confirmed before Kafka had them (looked at %s times)", number(r.Samples))},
		{"duplicates", r.Duplicates, false, "sent again after the kill: allowed, with the same id"},
	}
}

// Print writes the verdict for people.
func (r *Result) Print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\nVerdict on %s and %s: broker cut %s, relay killed %s\n\n",
		r.Postgres, r.Broker, times(r.BrokerCuts), times(r.RelayKills))
	for _, row := range r.rows() {
		mark := "  "
		if row.fault {
			mark = "ok"
			if row.count > 0 {
				mark = "!!"
			}
		}
		fmt.Fprintf(&b, "  %s  %-20s %8s   %s\n", mark, row.name, number(row.count), row.meaning)
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "\n  %s: %s", f.Kind, f.Text)
	}
	if len(r.Findings) > 0 {
		b.WriteString("\n")
	}
	if r.Kept {
		fmt.Fprintf(&b, "\nThe promise held. (%.1f s)\n", r.Seconds)
	} else {
		b.WriteString("\nThe promise did NOT hold.\n")
	}
	if r.Folder != "" {
		fmt.Fprintf(&b, "Kept in %s: data, postrider.yaml and relay.log\n", r.Folder)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
