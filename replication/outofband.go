package replication

import (
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// outOfBand handles what may stand between the CopyData messages of a stream.
func (st *Stream) outOfBand(kind byte, body []byte) error {
	switch kind {
	case 'N':
		return st.notice(body)
	case 'E':
		var msg pgproto3.ErrorResponse
		if err := msg.Decode(body); err != nil {
			return &ProtocolError{Problem: "malformed ErrorResponse"}
		}
		return pgconn.ErrorResponseToPgError(&msg)
	case 'c', 'C':
		// CopyDone or CommandComplete: a walsender ends its stream by itself
		// only when the server stops and all was confirmed.
		return fmt.Errorf("%w: it ended the stream", ErrServerShutdown)
	case 'S', 'A':
		return nil // ParameterStatus after a reload, NotificationResponse
	default:
		return &ProtocolError{Problem: fmt.Sprintf("unexpected server message %q (0x%02X) in the stream", rune(kind), kind)}
	}
}

// notice logs a notice, and ends the stream where the server says that it went
// on without a publication: from then on rows would be missing in silence (rule 7).
func (st *Stream) notice(body []byte) error {
	var msg pgproto3.NoticeResponse
	if err := msg.Decode(body); err != nil {
		return &ProtocolError{Problem: "malformed NoticeResponse"}
	}
	st.log.Warn().Str("slot", st.slot).Str("severity", msg.SeverityUnlocalized).Str("sqlstate", msg.Code).
		Str("notice", msg.Message).Msg("notice from the server")
	// The text may be translated; the function that wrote it is not.
	if msg.Routine == "LoadPublications" || strings.Contains(msg.Message, "skipped loading publication") {
		return fmt.Errorf("%w: %s", ErrPublicationLost, msg.Message)
	}
	return nil
}
