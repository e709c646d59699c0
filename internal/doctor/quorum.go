package doctor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// describeQuorum asks a KRaft cluster about its controllers. kafka-go does not know the
// request, so it writes and reads itself. It is the one question whose answer holds the
// cluster's clock: a leader reports of itself that it has just caught up.
type describeQuorum struct{}

const (
	describeQuorumKey protocol.ApiKey = 55
	// describeQuorumVersion is the first with times (KIP-836, Kafka 3.3).
	describeQuorumVersion = 1
	// quorumCorrelation is out of the way of the connection's own numbers.
	quorumCorrelation = 1 << 30
	// quorumMost bounds an answer: some hundred bytes in truth.
	quorumMost = 1 << 20
)

// ApiKey implements protocol.Message.
func (*describeQuorum) ApiKey() protocol.ApiKey { return describeQuorumKey }

// Required implements protocol.RawExchanger.
func (*describeQuorum) Required(map[protocol.ApiKey]int16) bool { return true }

var _ protocol.RawExchanger = (*describeQuorum)(nil)

// quorum is the answer.
type quorum struct {
	// clock is the leader's, when it answered.
	clock time.Time
}

// ApiKey implements protocol.Message.
func (*quorum) ApiKey() protocol.ApiKey { return describeQuorumKey }

// RawExchange implements protocol.RawExchanger.
func (*describeQuorum) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	if _, err := rw.Write(quorumRequest()); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > quorumMost {
		return nil, fmt.Errorf("an answer of %d bytes", n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(rw, body); err != nil {
		return nil, err
	}
	return readQuorum(body)
}

// quorumRequest asks for the one partition of the metadata log.
func quorumRequest() []byte {
	const clientID, topic = "postrider doctor", "__cluster_metadata"
	b := make([]byte, 4, 64)
	b = binary.BigEndian.AppendUint16(b, uint16(describeQuorumKey))
	b = binary.BigEndian.AppendUint16(b, describeQuorumVersion)
	b = binary.BigEndian.AppendUint32(b, quorumCorrelation)
	b = binary.BigEndian.AppendUint16(b, uint16(len(clientID)))
	b = append(b, clientID...)
	b = append(b, 0)   // no tagged fields of the header
	b = append(b, 1+1) // one topic
	b = append(b, byte(len(topic)+1))
	b = append(b, topic...)
	b = append(b, 1+1)        // one partition
	b = append(b, 0, 0, 0, 0) // number 0
	b = append(b, 0, 0, 0)    // no tagged fields of partition, topic, request
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

var errShort = errors.New("the answer ends too early")

// readQuorum walks the answer to the leader's own line among the voters.
func readQuorum(body []byte) (*quorum, error) {
	r := flexible{b: body}
	r.skip(4) // correlation
	r.tags()
	if code := kafka.Error(int16(r.uint16())); r.err == nil && code != 0 {
		return nil, code
	}
	if r.uvarint() != 2 { // one topic
		return nil, errors.Join(errShort, r.err)
	}
	r.skip(int(r.uvarint()) - 1) // its name
	if r.uvarint() != 2 {        // one partition
		return nil, errors.Join(errShort, r.err)
	}
	r.skip(4)
	if code := kafka.Error(int16(r.uint16())); r.err == nil && code != 0 {
		return nil, code
	}
	leader := r.uint32()
	r.skip(4 + 8) // epoch, high watermark
	for voters := int(r.uvarint()) - 1; voters > 0 && r.err == nil; voters-- {
		id := r.uint32()
		r.skip(8 + 8) // log end offset, last fetch
		caughtUp := r.uint64()
		r.tags()
		if r.err == nil && id == leader && int64(caughtUp) > 0 {
			return &quorum{clock: time.UnixMilli(int64(caughtUp))}, nil
		}
	}
	return nil, errors.Join(errors.New("the controller does not tell its time"), r.err)
}

// flexible reads the fields of a flexible message; err is set where they end too early.
type flexible struct {
	b   []byte
	err error
}

func (r *flexible) skip(n int) {
	if n < 0 || n > len(r.b) {
		r.b, r.err = nil, errShort
		return
	}
	r.b = r.b[n:]
}

func (r *flexible) fixed(n int) []byte {
	if len(r.b) < n {
		r.b, r.err = nil, errShort
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *flexible) uint16() uint16 { return binary.BigEndian.Uint16(r.fixed(2)) }
func (r *flexible) uint32() uint32 { return binary.BigEndian.Uint32(r.fixed(4)) }
func (r *flexible) uint64() uint64 { return binary.BigEndian.Uint64(r.fixed(8)) }

func (r *flexible) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.b, r.err = nil, errShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

// tags passes over tagged fields.
func (r *flexible) tags() {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		r.uvarint()
		r.skip(int(r.uvarint()))
	}
}
