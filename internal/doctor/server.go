package doctor

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/replication"
)

func checkPostgres(ctx context.Context, e *exam) []answer {
	if err := e.connect(ctx); err != nil {
		return fullProblem(err)
	}
	return ok("%s answers, database %q, user %q", e.server.peer, e.server.database, e.server.user)
}

func checkServer(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	return orOK(problems(replication.CheckServer(ctx, conn)), "PostgreSQL %s, a primary", e.server.version)
}

func checkWALLevel(ctx context.Context, e *exam) []answer {
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	return orOK(problems(replication.CheckWALLevel(ctx, conn)), "logical")
}

// settings are those of pg_settings that checks look at, in its units.
type settings map[string]setting

type setting struct{ value, unit string }

// number is -1 where the server has no such setting.
func (s settings) number(name string) int64 {
	n, err := strconv.ParseInt(s[name].value, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// duration is -1 where the server has no such setting.
func (s settings) duration(name string) time.Duration {
	n := s.number(name)
	if n < 0 {
		return -1
	}
	unit, known := map[string]time.Duration{"ms": time.Millisecond, "s": time.Second, "min": time.Minute}[s[name].unit]
	if !known {
		return -1
	}
	return time.Duration(n) * unit
}

const settingsSQL = `SELECT name, setting, coalesce(unit, '') FROM pg_catalog.pg_settings WHERE name = ANY(ARRAY[
  'max_replication_slots', 'max_wal_senders', 'wal_sender_timeout', 'max_slot_wal_keep_size', 'idle_replication_slot_timeout',
  'synchronized_standby_slots', 'data_directory', 'block_size'])`

func (e *exam) readSettings(ctx context.Context) (settings, error) {
	return e.settings.get(func() (settings, error) {
		conn, err := e.sql(ctx)
		if err != nil {
			return nil, err
		}
		rows, err := conn.Query(ctx, settingsSQL)
		if err != nil {
			return nil, err
		}
		all := settings{}
		var name string
		var s setting
		_, err = pgx.ForEachRow(rows, []any{&name, &s.value, &s.unit}, func() error { all[name] = s; return nil })
		return all, err
	})
}

func checkMaxSlots(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	var used int64
	var ours bool
	err = e.row(ctx, `SELECT count(*), coalesce(bool_or(slot_name = $1), false) FROM pg_catalog.pg_replication_slots`,
		[]any{e.cfg.Replication.Slot}, &used, &ours)
	if err != nil {
		return unanswered(err)
	}
	if most := set.number("max_replication_slots"); !ours && used >= most {
		return fail("raise max_replication_slots and restart PostgreSQL, or drop a slot that nobody uses (SELECT slot_name, active FROM pg_replication_slots)",
			"all %d slots are taken, and slot %q is not among them", most, e.cfg.Replication.Slot)
	}
	return ok("%d of %d slots are taken", used, set.number("max_replication_slots"))
}

func checkMaxWALSenders(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	slot, err := e.readSlot(ctx)
	if err != nil {
		return unanswered(err)
	}
	var used int64
	// Asked before this program opens one itself.
	if err := e.row(ctx, `SELECT count(*) FROM pg_catalog.pg_stat_replication`, nil, &used); err != nil {
		return unanswered(err)
	}
	const fix = "raise max_wal_senders and restart PostgreSQL, or end what uses them (SELECT pid, application_name FROM pg_stat_replication)"
	switch most := set.number("max_wal_senders"); {
	case used < most:
		return ok("%d of %d are taken", used, most)
	case slot.Active:
		return warn(fix, "all %d are taken, one of them by the relay: a second instance could not wait for the slot, nor take it over", most)
	default:
		return fail(fix, "all %d are taken: the relay could not connect", most)
	}
}

const (
	shortestWALSenderTimeout = 10 * time.Second
	longestWALSenderTimeout  = 10 * time.Minute
)

func checkWALSenderTimeout(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	timeout, where := set.duration("wal_sender_timeout"), "the server's"
	if own := e.cfg.Replication.WALSenderTimeout; own > 0 {
		timeout, where = own, "from replication.wal_sender_timeout"
	}
	const fix = "set replication.wal_sender_timeout: 60s in the configuration, or wal_sender_timeout on the server"
	switch {
	case timeout == 0:
		return warn(fix, "it is off: a relay whose machine or network is gone keeps the slot, and no other can take over")
	case timeout < shortestWALSenderTimeout:
		return warn(fix, "%s (%s): the stream is cut at any hiccup that lasts as long; the relay reports every third of it", timeout, where)
	case timeout > longestWALSenderTimeout:
		return warn(fix, "%s (%s): a relay whose machine is gone keeps the slot as long, and no other can take over", timeout, where)
	}
	return ok("%s (%s)", timeout, where)
}

// smallestKeepSize is what a short outage brings on a database that is written to.
const smallestKeepSize = 256 << 20

// shortestKept is the outage that a slot should survive at least, at the mean rate of WAL.
const shortestKept = time.Hour

func checkKeepSize(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	size := set.number("max_slot_wal_keep_size") // MB, -1: no bound
	const fix = "ALTER SYSTEM SET max_slot_wal_keep_size = '%s'; SELECT pg_reload_conf(); choose what the WAL's disk can spare"
	if size < 0 {
		return warn(fixf(fix, "50GB"), "nothing bounds the WAL that the slot holds back: an outage that lasts fills the primary's disk")
	}
	size <<= 20
	rate, err := e.walRate(ctx)
	if err != nil {
		return unanswered(err)
	}
	lasts := ""
	if rate > 0 {
		outage := time.Duration(float64(size) / rate * float64(time.Second)).Round(time.Minute)
		lasts = fixf(", an outage of some %s at the mean rate of WAL", words(outage))
		if outage < shortestKept {
			return warn(fixf(fix, "50GB"), "%s%s: then the slot is lost", bytesText(size), lasts)
		}
	}
	if size < smallestKeepSize {
		return warn(fixf(fix, "50GB"), "%s: a short outage of the relay or of Kafka, and the slot is lost", bytesText(size))
	}
	return ok("%s%s", bytesText(size), lasts)
}

// walRate is the mean rate of WAL in bytes a second, 0 where too little is known of it.
func (e *exam) walRate(ctx context.Context) (rate float64, err error) {
	err = e.row(ctx, `SELECT CASE WHEN clock_timestamp() - stats_reset > interval '1 hour'
	  THEN (wal_bytes / extract(epoch FROM clock_timestamp() - stats_reset))::float8 ELSE 0 END FROM pg_catalog.pg_stat_wal`, nil, &rate)
	return rate, err
}

func checkIdleTimeout(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	if _, known := set["idle_replication_slot_timeout"]; !known {
		return skip("PostgreSQL %d does not have it (18 has)", e.server.major)
	}
	switch timeout := set.duration("idle_replication_slot_timeout"); {
	case timeout == 0:
		return ok("off")
	case timeout < e.cfg.LongestOutage:
		return warn("ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf(); max_slot_wal_keep_size bounds what a slot can cost",
			"a relay that is stopped for %s loses its slot, however little WAL it holds back", words(timeout))
	default:
		return ok("%s, longer than the longest outage of %s", words(timeout), words(e.cfg.LongestOutage))
	}
}
