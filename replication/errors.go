package replication

import (
	"errors"
	"fmt"

	"github.com/postrider/postrider/event"
)

var (
	// ErrServerShutdown says that PostgreSQL is going down, or sent this
	// connection away: stop the lanes, confirm no more than is stored,
	// disconnect, come back with back-off (rule 1).
	ErrServerShutdown = errors.New("the server is shutting down")
	// ErrSlotTaken says that the slot is not held by this connection any more.
	ErrSlotTaken = errors.New("the slot is held by another connection")
	// ErrPublicationLost says that the server skipped a publication it could not find (rule 7).
	ErrPublicationLost = errors.New("the server skipped a publication that does not exist")
	// ErrPooler says that the address is a connection pooler, not the server.
	ErrPooler = errors.New("a connection pooler answers at this address")
)

// SlotBusyError says that another connection holds the slot (SQLSTATE 55006).
// It heals: retry with back-off and take over (trap 21).
type SlotBusyError struct {
	Slot string
	// PID of the backend that holds the slot; zero where the server did not say.
	PID uint32
}

func (e *SlotBusyError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("slot %q is active for another connection", e.Slot)
	}
	return fmt.Sprintf("slot %q is active for PID %d", e.Slot, e.PID)
}

// ProtocolError says that the stream holds something that this decoder must not
// skip: an unknown message, a truncated one, a row that does not fit its
// relation. Going on could lose an event in silence.
type ProtocolError struct {
	// Message is the pgoutput message byte, or zero outside of pgoutput.
	Message byte
	// LSN is the position that the message came with (its start), or the commit
	// LSN of the open transaction where the message has none.
	LSN event.LSN
	// Problem is one sentence, without payload bytes.
	Problem string
}

func (e *ProtocolError) Error() string {
	if e.Message == 0 {
		return fmt.Sprintf("%s (at LSN %s)", e.Problem, e.LSN)
	}
	return fmt.Sprintf("pgoutput message %q (0x%02X) at LSN %s: %s", rune(e.Message), e.Message, e.LSN, e.Problem)
}
