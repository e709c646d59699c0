package outbox

import (
	"crypto/md5"
	"fmt"
	"strconv"
)

const columns = "event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload"

// loop inserts every stride-th event from first to last, RowsPerTxn to a transaction.
func (s Spec) loop(first, last, stride int) string {
	step := stride * s.RowsPerTxn
	from := fmt.Sprintf("generate_series(i, least(i + %d, %d), %d) AS n", step-1, last, stride)
	if s.RowsPerTxn == 1 {
		from = "(VALUES (i)) AS v (n)" // half the cost of a series
	}
	return s.block(fmt.Sprintf(`FOR i IN %d..%d BY %d LOOP
    INSERT INTO %s (%s) SELECT %s FROM %s;
    COMMIT;
  END LOOP`, first, last, step, s.Table, columns, s.values(), from))
}

// block has the fillers at hand: texts for large payloads, since md5 of each piece of each row would take longer than the insert.
func (s Spec) block(body string) string {
	pieces := max(1, (s.Payload-payloadFrame-32)/32)
	return fmt.Sprintf(`DO $$
DECLARE
  i bigint;
  f text[] := ARRAY(SELECT string_agg(md5(x || '/' || y), '' ORDER BY y)
    FROM generate_series(1, 100) AS x, generate_series(1, %d) AS y GROUP BY x);
BEGIN
  %s;
END $$`, pieces, body)
}

// values are the columns of event n. The payload is text on its way to jsonb, with a number that loses a digit in careless hands.
func (s Spec) values() string {
	return fmt.Sprintf(`('%s' || lpad(to_hex(n), 12, '0'))::uuid, 'order', 'order-' || (n %% %d), n, 'OrderPlaced', %s`,
		idPrefix, Keys, s.payload())
}

// payloadFrame is the length of a payload without its note, about.
const payloadFrame = 141

// payloadFormat is a payload with the event's note, its number and the number modulo 1000. Its text is what jsonb makes of it, byte for
// byte: members by length of name, then by name; one blank behind colons and commas. The total loses a digit in careless hands.
const payloadFormat = `{"note": "%s", "lines": [{"qty": 2, "sku": "A-17", "price": 12.50}], "total": 0.0600, "status": "paid", "orderId": %s, "customer": "c-%s"}`

// noteLength is that of a payload of some 200 bytes.
const noteLength = 200 - payloadFrame

// Payload is payload::text of event n in a table with payloads of 200 bytes.
func Payload(n int64) string {
	note := fmt.Sprintf("%x%x", md5.Sum([]byte(strconv.FormatInt(n, 10))), md5.Sum([]byte(strconv.FormatInt(-n, 10))))
	return fmt.Sprintf(payloadFormat, note[:noteLength], strconv.FormatInt(n, 10), strconv.FormatInt(n%1000, 10))
}

func (s Spec) payload() string {
	note := fmt.Sprintf("substr(md5(n::text) || md5((-n)::text), 1, %d)", max(1, s.Payload-payloadFrame))
	if s.Payload-payloadFrame > 64 {
		note = "md5(n::text) || f[1 + n % 100]"
	}
	return fmt.Sprintf("format('%s', %s, n, n %% 1000)::jsonb", payloadFormat, note)
}
