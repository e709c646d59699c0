package topic

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/fetch"
)

const (
	// fetchBytes bounds an answer; a single larger batch is sent all the same.
	fetchBytes = 4 << 20
	// fetchWait is how long a broker may wait for something to send, in milliseconds.
	fetchWait = 500
	// maxAnswer is more than any answer of a broker can have: what claims to be larger is no answer.
	maxAnswer = 1 << 30
)

// fetchRequest asks for one partition and keeps the answer's bytes as they came: kafka-go's
// decoder drops where a batch ends, without which there is no way past the records that
// compaction has removed, and decompresses all batches at once.
type fetchRequest struct {
	*fetch.Request
	clientID string
	version  int16
	// buf is used for the answer where it is large enough.
	buf []byte
}

var _ protocol.RawExchanger = (*fetchRequest)(nil)

func newFetch(clientID, topic string, partition int32, from int64, buf []byte) *fetchRequest {
	return &fetchRequest{clientID: clientID, buf: buf, Request: &fetch.Request{
		ReplicaID: consumer, MaxWaitTime: fetchWait, MinBytes: 1, MaxBytes: fetchBytes, IsolationLevel: readCommitted,
		SessionID: 0, SessionEpoch: -1, // no session: each request stands alone
		Topics: []fetch.RequestTopic{{Topic: topic, Partitions: []fetch.RequestPartition{{
			Partition: partition, CurrentLeaderEpoch: anyEpoch, FetchOffset: from, LogStartOffset: -1, PartitionMaxBytes: fetchBytes,
		}}}},
	}}
}

// Required is protocol.RawExchanger's; it notes the version that the connection speaks.
func (f *fetchRequest) Required(versions map[protocol.ApiKey]int16) bool {
	f.version = versions[protocol.Fetch]
	return true
}

// RawExchange is protocol.RawExchanger's.
func (f *fetchRequest) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	const correlation = 1 // a connection has one request at a time
	if f.version < 4 {
		return nil, errors.New("the broker does not speak Fetch v4, which tells committed records from others")
	}
	if err := protocol.WriteRequest(rw, f.version, correlation, f.clientID, f.Request); err != nil {
		return nil, err
	}
	var head [8]byte
	if _, err := io.ReadFull(rw, head[:]); err != nil {
		return nil, err
	}
	size := int64(int32(binary.BigEndian.Uint32(head[:4]))) - 4
	if got := int32(binary.BigEndian.Uint32(head[4:])); size < 0 || size > maxAnswer || got != correlation {
		return nil, fmt.Errorf("answer of %d bytes to request %d makes no sense", size, got)
	}
	if int64(cap(f.buf)) < size {
		f.buf = make([]byte, size)
	}
	f.buf = f.buf[:size]
	if _, err := io.ReadFull(rw, f.buf); err != nil {
		return nil, err
	}
	return parseFetch(f.buf, f.version)
}

// fetchResponse is an answer about one partition. batches is a part of the request's buffer.
type fetchResponse struct {
	throttleMillis int32
	code           kafka.Error
	// highWatermark: records before it are replicated; stable: and no transaction before it is open.
	highWatermark, stable int64
	aborted               []abortedTransaction
	batches               []byte
}

// ApiKey makes it a protocol.Message.
func (*fetchResponse) ApiKey() protocol.ApiKey { return protocol.Fetch }

// abortedTransaction: the producer's transactional records from first on, up to its abort
// marker, do not count.
type abortedTransaction struct{ producer, first int64 }

// parseFetch reads versions 4 to 11, none of which is flexible.
func parseFetch(body []byte, version int16) (*fetchResponse, error) {
	p := parser{rest: body}
	res := &fetchResponse{throttleMillis: p.int32()}
	if version >= 7 {
		res.code = kafka.Error(p.int16())
		p.int32() // session
	}
	if p.int32() == 0 { // topics
		return res, p.err
	}
	p.skip(int(p.int16())) // the topic's name
	if p.int32() == 0 {    // partitions
		return res, p.err
	}
	p.int32() // partition
	if code := kafka.Error(p.int16()); code != 0 {
		res.code = code
	}
	res.highWatermark, res.stable = p.int64(), p.int64()
	if version >= 5 {
		p.int64() // log start
	}
	for n := p.int32(); n > 0 && p.err == nil; n-- {
		res.aborted = append(res.aborted, abortedTransaction{producer: p.int64(), first: p.int64()})
	}
	if version >= 11 {
		p.int32() // preferred replica: none is named to a client without a rack
	}
	res.batches = p.take(int(p.int32()))
	return res, p.err
}
