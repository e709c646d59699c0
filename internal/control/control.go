// Package control carries what an operator asks of a relay while it runs. The wish
// itself is durable in postrider.checkpoint (paused_at), so that it survives the relay;
// a row of postrider.command is the question whether it is done, a notification wakes
// the relay, and the answer comes in the same row. There is no second network port.
package control

import "time"

// Channel is what commands notify a relay on. The payload is the publisher's name.
const Channel = "postrider_command"

// Verb is what is asked for.
type Verb string

// The verbs that a relay knows.
const (
	Pause  Verb = "pause"
	Resume Verb = "resume"
)

// Pausing says since when publishing is paused, and by whom. The zero value: it is not.
type Pausing struct {
	Since time.Time
	By    string
}

// On says that publishing is, or is to be, paused.
func (p Pausing) On() bool { return !p.Since.IsZero() }

// Wants says that the verb asks for this state.
func (p Pausing) Wants(v Verb) bool { return p.On() == (v == Pause) }

// State is where a relay stands with what it was asked for.
type State string

// The states.
const (
	Running State = "running"
	// Draining: nothing more is handed over, and what was is not all acknowledged and stored.
	Draining State = "pausing"
	Paused   State = "paused"
)

// Answer is what a relay writes into a command's row. It is written more than once
// while the relay is on its way; answered_at says that it is the last.
type Answer struct {
	State State `json:"state"`
	// Holder names the relay.
	Holder string `json:"holder"`
	// Unacknowledged events were handed over and are not resolved.
	Unacknowledged int `json:"unacknowledged_events"`
	// Confirmed is the stored position.
	Confirmed string `json:"confirmed_lsn"`
}

// Command is a row that is not answered.
type Command struct {
	ID      int64
	Verb    Verb
	AskedBy string
}
