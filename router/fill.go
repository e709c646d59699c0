package router

import "github.com/postrider/postrider/event"

// fillHeaders appends the headers in their order: default ones, mapped ones, those
// of the headers column.
func (r *Router) fillHeaders(b *binding, row *event.Row, msg *event.Message) problem {
	for i := range b.headers {
		h := &b.headers[i]
		value, p := r.headerValue(h, row)
		if p.is() {
			return p
		}
		msg.Headers = append(msg.Headers, event.Header{Name: h.header, Value: value})
	}
	return r.fillColumnHeaders(b, row, msg)
}

// headerValue gives a header's bytes; nil for NULL.
func (r *Router) headerValue(h *boundHeader, row *event.Row) ([]byte, problem) {
	v, ok := cellOf(row, &h.column)
	switch {
	case !ok:
		return nil, undecodable(&h.column, notSent)
	case v.null:
		return nil, problem{}
	case !h.debezium:
		return v.data, problem{}
	}
	start := len(r.buf)
	buf, detail := r.conv.append(r.buf, h.typ, v.data, styleHeader)
	if detail != "" {
		return nil, undecodable(&h.column, "it "+detail)
	}
	r.buf = buf
	if len(buf) == start {
		return noBytes, problem{}
	}
	return buf[start:len(buf):len(buf)], problem{}
}

func (r *Router) fillColumnHeaders(b *binding, row *event.Row, msg *event.Message) problem {
	c := &b.headersColumn
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
	var detail string
	msg.Headers, r.buf, detail = appendColumnHeaders(msg.Headers, v.data, r.buf, r.names)
	if detail != "" {
		return problem{event.ReasonHeaders, c.name, "the headers column " + detail}
	}
	return problem{}
}

// fillValue decides between a tombstone, the payload alone and the envelope.
func (r *Router) fillValue(b *binding, row *event.Row, msg *event.Message) problem {
	if b.tombstone.mapped() {
		v, ok := cellOf(row, &b.tombstone)
		if !ok {
			return undecodable(&b.tombstone, notSent)
		}
		if !v.null && string(v.data) == "t" {
			return problem{}
		}
	}
	m := &b.src.cfg.Mapping
	v, ok := cellOf(row, &b.payload)
	switch {
	case !ok:
		return undecodable(&b.payload, notSent)
	case v.null && (m.NullPayload == NullPayloadTombstone || m.NullPayload == NullPayloadNull && m.Envelope == nil):
		return problem{}
	case v.null && m.NullPayload != NullPayloadNull:
		return problem{event.ReasonNullPayload, b.payload.name, "the payload is NULL"}
	case !v.null && m.BlankPayload == BlankPayloadTombstone && b.payload.typ.kind != kindBytea && isBlank(v.data):
		return problem{}
	case m.Envelope != nil:
		return r.fillEnvelope(b, row, v, msg)
	}
	if msg.Value, ok = r.raw(&b.payload, v.data); !ok {
		return undecodable(&b.payload, "it "+badBytea)
	}
	return problem{}
}

// isBlank is what Java's trim leaves nothing of: characters up to the space.
func isBlank(text []byte) bool {
	for _, c := range text {
		if c > ' ' {
			return false
		}
	}
	return true
}

// fillEnvelope splices {"payload":…,"name":…} together.
func (r *Router) fillEnvelope(b *binding, row *event.Row, payload cell, msg *event.Message) problem {
	start := len(r.buf)
	buf := append(r.buf, b.src.head...)
	buf, detail := r.appendPayload(buf, b, payload)
	if detail != "" {
		return undecodable(&b.payload, "it "+detail)
	}
	debezium := b.src.cfg.Mapping.Envelope.Mode == EnvelopeDebezium
	for i := range b.fields {
		f := &b.fields[i]
		v, ok := cellOf(row, &f.column)
		if !ok {
			return undecodable(&f.column, notSent)
		}
		buf = append(buf, f.prefix...)
		switch {
		case v.null:
			buf = append(buf, "null"...)
		case debezium:
			buf, detail = r.conv.append(buf, f.typ, v.data, styleJSON)
		default:
			buf, detail = appendJSONValue(buf, f.typ, v.data, &r.tmp)
		}
		if detail != "" {
			return undecodable(&f.column, "it "+detail)
		}
	}
	r.buf = append(buf, '}')
	msg.Value = r.buf[start:len(r.buf):len(r.buf)]
	return problem{}
}

func (r *Router) appendPayload(buf []byte, b *binding, payload cell) ([]byte, string) {
	e := b.src.cfg.Mapping.Envelope
	switch {
	case payload.null:
		return append(buf, "null"...), ""
	case e.Mode == EnvelopeDebezium:
		return r.conv.append(buf, b.payload.typ, payload.data, styleJSON)
	case b.payload.typ.kind == kindJSON:
		return append(buf, payload.data...), ""
	case e.PayloadAs != PayloadAsJSON && b.payload.typ.kind == kindBytea:
		return appendJSONValue(buf, b.payload.typ, payload.data, &r.tmp)
	case e.PayloadAs != PayloadAsJSON:
		return appendJSONString(buf, payload.data), ""
	}
	return r.appendJSONPayload(buf, b, payload.data)
}

// appendJSONPayload splices a payload that is declared to be JSON, after a look at
// whether it is: one that is not would break the whole envelope.
func (r *Router) appendJSONPayload(buf []byte, b *binding, text []byte) ([]byte, string) {
	if b.payload.typ.kind == kindBytea {
		raw, ok := appendHexDecoded(r.tmp[:0], text)
		r.tmp = raw
		if !ok {
			return buf, badBytea
		}
		text = raw
	}
	if !isJSON(text) {
		return buf, "is no JSON, which payload_as declares it to be"
	}
	return append(buf, text...), ""
}
