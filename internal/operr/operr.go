// Package operr is the error that is written for an operator: what was being
// done, to what, what went wrong, and what to try. It also carries the class
// that decides the exit code. It is a leaf: it imports nothing of this module.
package operr

import "errors"

// Class groups errors by who has to act. The command line turns it into an exit code.
type Class int

const (
	// Internal is a fault of the program itself.
	Internal Class = iota + 1
	// Config is a configuration or usage error.
	Config
	// Postgres is a server, role, publication or connection that does not serve.
	Postgres
	// Kafka is a broker or topic that does not serve.
	Kafka
	// Slot is a slot or position that cannot be trusted; going on might skip events.
	Slot
	// Halted means that an event was refused and the policy is to stop at it.
	Halted
	// DrainIncomplete means that the shutdown timeout passed with events unconfirmed.
	DrainIncomplete
	// Findings means that a command that looks ran to its end, and what it looked at is not right.
	Findings
)

// ExitCode is the documented exit code of the class.
func (c Class) ExitCode() int {
	if c < Internal || c > Findings {
		return int(Internal)
	}
	return int(c)
}

// Error is an error for an operator.
type Error struct {
	Class Class
	// Op is what was being done: "start replication".
	Op string
	// Subject is the thing: `slot "outbox_slot"`.
	Subject string
	// Hint is one sentence that follows "Try: ".
	Hint string
	// Transient says that the same call may succeed later without anybody acting.
	Transient bool
	// Err is the cause.
	Err error
}

var _ error = (*Error)(nil)

// Error is "op subject: cause", without the hint.
func (e *Error) Error() string {
	s := e.Op
	if e.Subject != "" {
		s += " " + e.Subject
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ClassOf gives the class of the outermost Error in the chain; Internal where there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) && e.Class != 0 {
		return e.Class
	}
	return Internal
}

// HintOf gives the first hint in the chain, or "".
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// IsTransient says that retrying may help without anybody acting.
func IsTransient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Transient
}
