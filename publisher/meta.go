package publisher

import (
	"encoding/binary"
	"fmt"

	"github.com/postrider/postrider/event"
)

// recordMeta is what a refusal names of a record, and what the record itself does not
// say of its event.
type recordMeta struct {
	txn    uint64
	commit event.LSN
	index  uint64
	policy event.Policy
	// chosen says that the event named its partition itself.
	chosen                            bool
	id, aggregateType, kind, revision []byte
	// deadLetter is empty for most records, and takes no room then.
	deadLetter string
}

func metaOf(msg *event.Message, txn uint64) recordMeta {
	return recordMeta{
		txn: txn, commit: msg.Position.Commit, index: msg.Position.Index, policy: msg.OnRefusal, chosen: msg.Partition >= 0,
		id: msg.EventID, aggregateType: msg.AggregateType, kind: msg.EventType, revision: msg.AggregateVersion, deadLetter: msg.DeadLetter,
	}
}

// metaSize bounds what write adds.
func metaSize(msg *event.Message) int {
	return 8*binary.MaxVarintLen64 + 1 + len(msg.EventID) + len(msg.AggregateType) + len(msg.EventType) + len(msg.AggregateVersion) + len(msg.DeadLetter)
}

const (
	chosenFlag     = 1 << 7
	deadLetterFlag = 1 << 6
)

func (m *recordMeta) write(b *buffer) {
	b.writeUvarint(m.txn)
	b.writeUvarint(uint64(m.commit))
	b.writeUvarint(m.index)
	flags := byte(m.policy)
	if m.chosen {
		flags |= chosenFlag
	}
	if m.deadLetter != "" {
		flags |= deadLetterFlag
	}
	b.writeByte(flags)
	for _, text := range [...][]byte{m.id, m.aggregateType, m.kind, m.revision} {
		b.writeUvarint(uint64(len(text)))
		_, _ = b.Write(text)
	}
	if m.deadLetter != "" {
		b.writeUvarint(uint64(len(m.deadLetter)))
		b.writeString(m.deadLetter)
	}
}

func readMeta(c *cursor) (m recordMeta, err error) {
	var v [3]uint64
	for i := range v {
		if v[i], err = binary.ReadUvarint(c); err != nil {
			return m, fmt.Errorf("read record's origin: %w", err)
		}
	}
	m.txn, m.commit, m.index = v[0], event.LSN(v[1]), v[2]
	flags, err := c.ReadByte()
	if err != nil {
		return m, fmt.Errorf("read record's origin: %w", err)
	}
	m.policy, m.chosen = event.Policy(flags&^(chosenFlag|deadLetterFlag)), flags&chosenFlag != 0
	texts := []*[]byte{&m.id, &m.aggregateType, &m.kind, &m.revision}
	var deadLetter []byte
	if flags&deadLetterFlag != 0 {
		texts = append(texts, &deadLetter)
	}
	for _, text := range texts {
		n, err := binary.ReadUvarint(c)
		if err != nil {
			return m, fmt.Errorf("read record's origin: %w", err)
		}
		if *text, err = c.next(int(n)); err != nil {
			return m, fmt.Errorf("read record's origin: %w", err)
		}
	}
	m.deadLetter = string(deadLetter)
	return m, nil
}
