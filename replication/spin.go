package replication

import (
	"time"

	"github.com/postrider/postrider/event"
)

const (
	spinRequests = 3
	spinWithin   = time.Second
)

// spin recognises a server that is shutting down: its walsender waits until the
// flush position equals all that it sent, and asks again after each answer. In
// every other state it asks at most once per half wal_sender_timeout (rule 1).
type spin struct {
	walEnd event.LSN
	at     []time.Time // of the last requests with this WAL end, by the server's clock
}

// asked takes a reply request and tells whether it completes a spin. The
// server's clock is used: requests that waited in a buffer of ours while
// reading was stopped would look like a burst.
func (s *spin) asked(walEnd event.LSN, sent time.Time) bool {
	if walEnd != s.walEnd {
		s.walEnd, s.at = walEnd, s.at[:0]
	}
	if len(s.at) == spinRequests {
		s.at = append(s.at[:0], s.at[1:]...)
	}
	s.at = append(s.at, sent)
	return len(s.at) == spinRequests && sent.Sub(s.at[0]) <= spinWithin
}
