package router

import (
	"math"

	"github.com/postrider/postrider/event"
)

// problem is why a row is refused, before it becomes a Refusal. The zero value is
// none. detail never holds any part of a payload.
type problem struct {
	reason event.Reason
	column string
	detail string
}

func (p problem) is() bool { return p.reason != "" }

// Route fills msg from row. routed is false without a refusal where the row's table
// is no source. msg and its slices are valid until the next call of the router and
// until the row is no longer valid; Headers' backing array is reused. The refusal
// keeps no memory of the row; after one, msg holds what could be found of what names
// the event and orders it.
func (r *Router) Route(row *event.Row, msg *event.Message) (routed bool, refusal *event.Refusal) {
	b := r.binding(row.Relation)
	if b == nil {
		return false, unbound(row)
	}
	if b.src == nil {
		return false, nil
	}
	r.begin(row, msg)
	if p := r.fill(b, row, msg); p.is() {
		return false, r.refuse(b, row, msg, p)
	}
	return true, nil
}

// unbound refuses a row whose description was never bound: a fault of the caller,
// which must not become a lost event.
func unbound(row *event.Row) *event.Refusal {
	return &event.Refusal{
		Reason: event.ReasonMissingColumn, Table: row.Relation.String(), Position: row.Position,
		Detail: "the table's description was not bound to a mapping",
	}
}

// begin empties the message and the scratch space.
func (r *Router) begin(row *event.Row, msg *event.Message) {
	if cap(r.buf) > maxScratch {
		r.buf = nil
	}
	if cap(r.tmp) > maxScratch {
		r.tmp = nil
	}
	r.conv.trim()
	r.buf = r.buf[:0]
	*msg = event.Message{
		Headers: msg.Headers[:0], Position: row.Position,
		Partition: event.NoPartition, TimestampMillis: row.CommitTime.UnixMilli(),
	}
}

// fill builds the message field by field: first what names the event, then what
// orders it, then the rest.
func (r *Router) fill(b *binding, row *event.Row, msg *event.Message) (p problem) {
	if len(row.Values) != len(b.rel.Columns) {
		return problem{event.ReasonUndecodable, "", "the row has another number of values than the table has columns"}
	}
	describe(b, row, msg)
	if b.eventID.mapped() {
		if p = r.fillEventID(b, row, msg); p.is() {
			return p
		}
	}
	if b.err != nil {
		first := b.err.Problems[0]
		return problem{first.Reason, first.Column, "mapped as " + first.Option + ", it " + first.Detail + b.err.columns()}
	}
	if p = r.fillKey(b, row, msg); p.is() {
		return p
	}
	if p = r.fillTopic(b, row, msg); p.is() {
		return p
	}
	if p = fillTimestamp(b, row, msg); p.is() {
		return p
	}
	if p = fillPartition(b, row, msg); p.is() {
		return p
	}
	if p = r.fillHeaders(b, row, msg); p.is() {
		return p
	}
	return r.fillValue(b, row, msg)
}

const notSent = "its value was not sent, which an insert cannot have"

func undecodable(c *column, detail string) problem {
	return problem{event.ReasonUndecodable, c.name, detail}
}

func (r *Router) fillEventID(b *binding, row *event.Row, msg *event.Message) problem {
	v, ok := cellOf(row, &b.eventID)
	switch {
	case !ok:
		return undecodable(&b.eventID, notSent)
	case v.null:
		return problem{event.ReasonNullEventID, b.eventID.name, "the event id is NULL"}
	case len(v.data) == 0:
		return problem{event.ReasonNullEventID, b.eventID.name, "the event id is empty"}
	}
	msg.EventID = v.data
	return problem{}
}

func (r *Router) fillKey(b *binding, row *event.Row, msg *event.Message) problem {
	v, ok := cellOf(row, &b.key)
	if ok && !v.null {
		v.data, ok = r.raw(&b.key, v.data)
	}
	switch {
	case !ok:
		return undecodable(&b.key, "the key cannot be decoded")
	case v.null:
		return problem{event.ReasonNullKey, b.key.name, "the key is NULL, so the event would have no order"}
	case len(v.data) == 0 && b.src.cfg.Mapping.EmptyKey != EmptyKeyAllow:
		return problem{event.ReasonEmptyKey, b.key.name, "the key is empty"}
	}
	msg.Key = v.data
	return problem{}
}

// raw gives a value's own bytes: a bytea is decoded into scratch space, all else is
// the text as it was sent.
func (r *Router) raw(c *column, text []byte) ([]byte, bool) {
	if c.typ.kind != kindBytea {
		return text, true
	}
	start := len(r.buf)
	buf, ok := appendHexDecoded(r.buf, text)
	if !ok {
		return nil, false
	}
	r.buf = buf
	if len(buf) == start {
		return noBytes, true
	}
	return buf[start:len(buf):len(buf)], true
}

func (r *Router) fillTopic(b *binding, row *event.Row, msg *event.Message) problem {
	r.values = r.values[:0]
	for i := range b.slots {
		v, ok := cellOf(row, &b.slots[i])
		if !ok {
			return undecodable(&b.slots[i], notSent)
		}
		r.values = append(r.values, v)
	}
	var o outcome
	o, r.key = b.src.routes.topic(r.values, r.key)
	msg.Topic, msg.OnRefusal, msg.DeadLetter = o.topic, o.policy, o.deadLetter
	return problem{o.reason, o.column, o.detail}
}

func fillPartition(b *binding, row *event.Row, msg *event.Message) problem {
	if !b.partition.mapped() {
		return problem{}
	}
	v, ok := cellOf(row, &b.partition)
	if !ok {
		return undecodable(&b.partition, notSent)
	}
	if v.null {
		return problem{}
	}
	n, ok := parseInt(v.data)
	if !ok || n < 0 || n > math.MaxInt32 {
		return problem{event.ReasonPartition, b.partition.name, "the partition is negative or too large"}
	}
	msg.Partition = int32(n)
	return problem{}
}

func fillTimestamp(b *binding, row *event.Row, msg *event.Message) problem {
	c := &b.timestamp
	if !c.mapped() {
		return problem{}
	}
	v, ok := cellOf(row, c)
	if !ok {
		return undecodable(c, notSent)
	}
	if v.null {
		return problem{}
	}
	millis, detail := timestampMillis(c.typ.kind, b.src.cfg.Mapping.Timestamp.Unit, v.data)
	if detail == "" && millis < 0 {
		detail = "the timestamp is before 1970, which a Kafka record cannot have"
	}
	if detail != "" {
		return problem{event.ReasonTimestamp, c.name, detail}
	}
	msg.TimestampMillis = millis
	return problem{}
}

// timestampMillis converts a timestamp's text to milliseconds since 1970; finer
// parts are cut off. A negative result stands for any time before 1970.
func timestampMillis(kind typeKind, unit Unit, text []byte) (millis int64, detail string) {
	if kind == kindInt {
		return integerMillis(unit, text)
	}
	at, ok := parseTimestamp(text, kind == kindTimestampTZ)
	switch {
	case !ok:
		return 0, "the timestamp cannot be read"
	case at.infinite != 0:
		return 0, "the timestamp is infinite"
	}
	return at.millis(), ""
}

func integerMillis(unit Unit, text []byte) (millis int64, detail string) {
	n, ok := parseInt(text)
	switch {
	case !ok:
		return 0, "the timestamp cannot be read"
	case n < 0:
		return -1, ""
	}
	switch unit {
	case UnitSeconds:
		if n > math.MaxInt64/1000 {
			return 0, "the timestamp is too large for its unit"
		}
		return n * 1000, ""
	case UnitMicros:
		return n / 1000, ""
	case UnitNanos:
		return n / 1_000_000, ""
	}
	return n, ""
}
