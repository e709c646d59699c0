package replication

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// messageHeader is the type byte and the int32 length of a server message.
	messageHeader = 5
	// xlogDataHeader is 'w', start, end and send time in front of a pgoutput message.
	xlogDataHeader = 1 + 8 + 8 + 8
	// peekBytes of a message that is too large are looked at: enough to name the
	// relation of an INSERT.
	peekBytes = xlogDataHeader + 1 + 4
)

// errTooLarge says that the next message does not fit; see wireReader.Oversized.
var errTooLarge = errors.New("message above the limit")

// wireReader splits the server's byte stream into messages, in place.
//
// It stands below pgproto3 while the session is set up and is used directly
// once the stream runs. As an io.Reader it never hands out bytes across the end
// of a message: pgproto3 reads ahead as far as it is given, and what it had
// taken beyond CopyBothResponse would be missing from the stream.
//
// It is not safe for concurrent use.
type wireReader struct {
	src  io.Reader
	base []byte // the buffer of ordinary size, kept for the reader's life
	buf  []byte // base, or a larger one while a larger message is in it
	r, w int    // unread bytes are buf[r:w]
	max  int    // largest body that Next reads into memory
	pass int    // bytes of the current message that Read has still to hand out

	messages int // handed out by Next
}

func newWireReader(src io.Reader, size, limit int) *wireReader {
	base := make([]byte, max(size, 4<<10))
	return &wireReader{src: src, base: base, buf: base, max: limit}
}

// Read implements io.Reader for pgproto3: at most the rest of one message.
func (r *wireReader) Read(p []byte) (int, error) {
	if r.pass == 0 {
		n, err := r.header()
		if err != nil {
			return 0, err
		}
		r.pass = messageHeader + n
	}
	if r.r == r.w {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, r.buf[r.r:min(r.w, r.r+r.pass)])
	r.r += n
	r.pass -= n
	return n, nil
}

// header waits for the next message's header and gives the length of its body.
func (r *wireReader) header() (int, error) {
	for r.w-r.r < messageHeader {
		if err := r.fill(); err != nil {
			return 0, err
		}
	}
	n := int(int32(binary.BigEndian.Uint32(r.buf[r.r+1:]))) - 4
	if n < 0 {
		return 0, fmt.Errorf("server message %q has the impossible length %d", rune(r.buf[r.r]), n+4)
	}
	return n, nil
}

// Next gives the next message; body is valid until the next call. On a timeout
// nothing is lost: call it again. A body above the limit gives errTooLarge and
// leaves the message in place.
func (r *wireReader) Next() (kind byte, body []byte, err error) {
	n, err := r.header()
	if err != nil {
		return 0, nil, err
	}
	if n > r.max {
		return r.buf[r.r], nil, errTooLarge
	}
	if err := r.require(messageHeader + n); err != nil {
		return 0, nil, err
	}
	kind = r.buf[r.r]
	body = r.buf[r.r+messageHeader : r.r+messageHeader+n]
	r.r += messageHeader + n
	r.messages++
	return kind, body, nil
}

// require makes n unread bytes available in one piece.
func (r *wireReader) require(n int) error {
	if r.w-r.r < n && n > len(r.buf) {
		grown := make([]byte, n)
		r.w = copy(grown, r.buf[r.r:r.w])
		r.r, r.buf = 0, grown
	}
	for r.w-r.r < n {
		if err := r.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill reads once.
func (r *wireReader) fill() error {
	r.makeRoom()
	n, err := r.src.Read(r.buf[r.w:])
	r.w += n
	if n > 0 {
		return nil
	}
	if err == nil {
		return io.ErrNoProgress
	}
	return err
}

// makeRoom gives back a grown buffer that has served, and moves a rest to the front where it is small or little space
// is left behind it: the next read should find room for all that has gathered, since a few bytes left in the kernel
// would be what the read after it has waited for.
func (r *wireReader) makeRoom() {
	unread := r.w - r.r
	switch {
	case len(r.buf) > len(r.base) && unread <= len(r.base)/2 && r.r > 0:
		copy(r.base, r.buf[r.r:r.w])
		r.buf, r.r, r.w = r.base, 0, unread
	case unread == 0:
		r.r, r.w = 0, 0
	case r.r > 0 && (unread <= len(r.buf)/16 || len(r.buf)-r.w < len(r.buf)/4):
		copy(r.buf, r.buf[r.r:r.w])
		r.r, r.w = 0, unread
	}
}

// Oversized describes the message that Next refused: its length and up to
// peekBytes of its beginning, valid until Discard.
func (r *wireReader) Oversized() (size int, head []byte, err error) {
	n, err := r.header()
	if err != nil {
		return 0, nil, err
	}
	if err := r.require(messageHeader + min(n, peekBytes)); err != nil {
		return 0, nil, err
	}
	return n, r.buf[r.r+messageHeader : r.r+messageHeader+min(n, peekBytes)], nil
}

// discarder drops a message that was refused, a buffer at a time; it survives
// timeouts of the reader.
type discarder struct{ left int }

// Discard starts to drop the message at hand.
func (r *wireReader) Discard() (discarder, error) {
	n, err := r.header()
	return discarder{left: messageHeader + n}, err
}

// Step drops what is buffered and reads more; done tells that the message is gone.
func (d *discarder) Step(r *wireReader) (done bool, err error) {
	n := min(d.left, r.w-r.r)
	r.r += n
	d.left -= n
	if d.left == 0 {
		return true, nil
	}
	return false, r.fill()
}
