package sizing

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Every event says what it must look like: the key names its writer, the version counts
// the key's events from 0, and the payload follows from both. A reader needs no list of
// what was written.

const (
	// backlogKeys are the keys of the backlog, b0 to b999, taken in turn.
	backlogKeys   = 1000
	backlogPrefix = "b"
	// writerKeys are the keys of each writer of the latency run: w3.0 to w3.15 are the fourth's.
	writerKeys   = 16
	writerPrefix = "w"

	eventType     = "Measured"
	aggregateType = "bench"
	// versionHeader is what the default profile calls the aggregate's version.
	versionHeader = "aggregate_version"
)

// payloadFrame is what jsonb's text has around the pad.
const payloadFrame = `{"pad": ""}`

// payload is the JSON of an event, size bytes as PostgreSQL prints it. Its pad is
// hexadecimal noise, which compresses to about a half, so that codecs are not flattered.
func payload(key string, version int64, size int) string {
	seed := append(strconv.AppendInt([]byte(key+"/"), version, 10), '/')
	text := append(make([]byte, 0, size+hex.EncodedLen(md5.Size)), payloadFrame[:len(payloadFrame)-2]...)
	for i := int64(1); len(text) < size-2; i++ {
		sum := md5.Sum(strconv.AppendInt(seed, i, 10))
		text = hex.AppendEncode(text, sum[:])
	}
	return string(append(text[:size-2], `"}`...))
}

// loadSQL is the procedure that writes the backlog on the server: rows first to last,
// one transaction for per_tx of them. It computes what payload does.
const loadSQL = `CREATE PROCEDURE public.load_backlog(first bigint, last bigint, per_tx int, keys int, size int) LANGUAGE plpgsql AS $$
DECLARE
    at bigint := first;
BEGIN
    WHILE at <= last LOOP
        INSERT INTO public.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT gen_random_uuid(), '` + aggregateType + `', '` + backlogPrefix + `' || n % keys, n / keys, '` + eventType + `',
               jsonb_build_object('pad', left((SELECT string_agg(md5('` + backlogPrefix + `' || n % keys || '/' || n / keys || '/' || i), '' ORDER BY i)
                   FROM generate_series(1, (size + 31) / 32) i), size))
          FROM generate_series(at, least(at + per_tx - 1, last)) n ORDER BY n;
        COMMIT;
        at := at + per_tx;
    END LOOP;
END $$`

// insertSQL writes one event of the latency run.
const insertSQL = `INSERT INTO public.outbox (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
	VALUES (gen_random_uuid(), '` + aggregateType + `', $1, $2, '` + eventType + `', $3::text::jsonb)`

// writerKey is the key of a writer's n-th event, and its version.
func writerKey(writer, n int) (key string, version int64) {
	return fmt.Sprintf("%s%d.%d", writerPrefix, writer, n%writerKeys), int64(n / writerKeys)
}

// writerEvent is the way back; ok is false for an event of the backlog.
func writerEvent(key string, version int64) (writer, n int, ok bool) {
	rest, found := strings.CutPrefix(key, writerPrefix)
	w, slot, dotted := strings.Cut(rest, ".")
	if !found || !dotted {
		return 0, 0, false
	}
	writer, err := strconv.Atoi(w)
	k, errSlot := strconv.Atoi(slot)
	if err != nil || errSlot != nil {
		return 0, 0, false
	}
	return writer, int(version)*writerKeys + k, true
}
