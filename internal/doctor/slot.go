package doctor

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/internal/operr"
	"github.com/postrider/postrider/replication"
)

func slotState(s replication.SlotInfo) checkpoint.SlotState {
	return checkpoint.SlotState{
		Name: s.Name, Exists: s.Exists, Confirmed: s.ConfirmedFlush, Restart: s.RestartLSN,
		WALStatus: s.WALStatus, Reason: s.InvalidationReason, Failover: s.Failover,
	}
}

// usableSlot gives the slot for the checks that need one.
func (e *exam) usableSlot(ctx context.Context) (replication.SlotInfo, error) {
	s, err := e.readSlot(ctx)
	if err == nil && s.Problem(e.server.database) != nil {
		err = needs("the slot cannot be used (see slot)")
	}
	return s, err
}

func checkSlot(ctx context.Context, e *exam) []answer {
	s, err := e.readSlot(ctx)
	if err != nil {
		return unanswered(err)
	}
	if p := s.Problem(e.server.database); p != nil {
		return e.unusable(ctx, s, p)
	}
	const fix = "start the relay, or find out what it waits for (its status page, postrider checkpoint show); raise max_slot_wal_keep_size meanwhile"
	switch s.WALStatus {
	case "unreserved":
		return fail(fix, "wal_status is unreserved: at the next checkpoint PostgreSQL removes WAL that it needs, and it is lost")
	case "extended":
		return warn(fix, "wal_status is extended: it holds back more than max_wal_size%s", safeText(s))
	}
	return ok("%s, WAL %s%s", holderText(s), s.WALStatus, safeText(s))
}

// unusable words a slot that is missing or lost by what is stored, as run does: since
// when events may be missing, and what heals it.
func (e *exam) unusable(ctx context.Context, s replication.SlotInfo, p *operr.Error) []answer {
	if s.Exists && !s.Lost() {
		return problems([]*operr.Error{p})
	}
	stored, err := e.readStored(ctx)
	if err != nil {
		return problems([]*operr.Error{p})
	}
	_, err = checkpoint.Decide(stored, slotState(s), checkpoint.System{}, nil)
	var worded *operr.Error
	if errors.As(err, &worded) {
		p = worded
	}
	return problems([]*operr.Error{p})
}

func holderText(s replication.SlotInfo) string {
	if !s.Active {
		return "not active"
	}
	return fmt.Sprintf("active for PID %d", s.ActivePID)
}

func safeText(s replication.SlotInfo) string {
	if !s.HasSafeWALSize {
		return ""
	}
	return fmt.Sprintf(", %s of WAL until it may be lost", bytesText(max(0, s.SafeWALSize)))
}

// muchWAL is what a slot without a bound may hold back before somebody should know.
const muchWAL = 10 << 30

func checkWALHeld(ctx context.Context, e *exam) []answer {
	s, err := e.usableSlot(ctx)
	if err != nil {
		return unanswered(err)
	}
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	var held int64
	if err := e.row(ctx, `SELECT greatest(0, pg_catalog.pg_wal_lsn_diff(pg_catalog.pg_current_wal_lsn(), $1::text::pg_lsn))::bigint`, []any{s.RestartLSN.String()}, &held); err != nil {
		return unanswered(err)
	}
	const fix = "start the relay, or find out what it waits for (its status page, postrider checkpoint show); an open transaction holds WAL back, too"
	text := bytesText(held) + " by a slot that is " + holderText(s)
	bound := set.number("max_slot_wal_keep_size") << 20
	switch {
	case bound < 0 && held > muchWAL:
		return warn(fix, "%s; nothing bounds it (see max_slot_wal_keep_size)", text)
	case bound < 0:
		return ok("%s", text)
	case held > bound/10*9:
		return fail(fix, "%s, of %s at which the slot is lost", text, bytesText(bound))
	case held > bound/2:
		return warn(fix, "%s, of %s at which the slot is lost", text, bytesText(bound))
	}
	return ok("%s, of %s", text, bytesText(bound))
}

func checkDisk(ctx context.Context, e *exam) []answer {
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	dir := set["data_directory"].value
	switch {
	case !localhost(hostOf(e.server.peer)):
		return skip("the server is on another machine; see wal_held, and watch its disk there")
	case dir == "":
		return skip("the role may not read data_directory (pg_read_all_settings may); see wal_held")
	}
	free, total, err := diskSpace(dir)
	if err != nil {
		return skip("its data directory is not seen from here (%s); see wal_held", err)
	}
	text := fmt.Sprintf("%s of %s are free at %s", bytesText(free), bytesText(total), dir)
	const fix = "make room, or lower max_slot_wal_keep_size: a full disk stops the primary, a lost slot is recovered with postrider recover"
	bound := set.number("max_slot_wal_keep_size") << 20
	switch {
	case free < total/20:
		return fail(fix, "%s", text)
	case free < bound:
		return warn(fix, "%s, less than max_slot_wal_keep_size lets the slot hold back (%s)", text, bytesText(bound))
	}
	return ok("%s", text)
}

// checkCheckpoint decides as run would, without taking the slot.
func checkCheckpoint(ctx context.Context, e *exam) []answer {
	slot, err := e.usableSlot(ctx)
	if err != nil {
		return unanswered(err)
	}
	stored, err := e.readStored(ctx)
	switch {
	case isState(err, undefinedTable):
		return unanswered(needs("there is no schema postrider (see schema)"))
	case isState(err, insufficientPrivilege):
		return unanswered(needs("the role may not read it (see grants)"))
	case err != nil:
		return unanswered(err)
	}
	sys, err := e.identify(ctx)
	if err != nil {
		return unanswered(needs("there is no replication session (see role)"))
	}
	conn, err := e.sql(ctx)
	if err != nil {
		return unanswered(err)
	}
	if found := e.sameServer(ctx, conn, sys); found != nil {
		return found
	}
	history, err := e.history(ctx, stored, sys)
	if err != nil {
		return unanswered(err)
	}
	state := slotState(slot)
	if state.WALEnd, err = e.store(conn).WALEnd(ctx); err != nil {
		return unanswered(err)
	}
	start, err := checkpoint.Decide(stored, state, sys, history)
	if err != nil {
		return problem(err)
	}
	if start.Doubtful {
		if _, err := stored.TickedOff(sys, state.WALEnd, history); err != nil {
			return fail(checkpoint.HintGap, "%s; it cannot be: %s", start.Why, err)
		}
	}
	if err := checkpoint.NoOpenTask(ctx, conn, e.cfg.Publisher); err != nil {
		if operr.ClassOf(err) != operr.Slot {
			return unanswered(err)
		}
		return problem(err)
	}
	return ok("%s", start.Why)
}

// sameServer: with several hosts in the connection string the two sessions may have
// reached different servers (rule 5).
func (e *exam) sameServer(ctx context.Context, conn *pgx.Conn, sys checkpoint.System) []answer {
	other, err := e.store(conn).System(ctx)
	switch {
	case err != nil:
		return unanswered(err)
	case other != sys:
		return fail("target_session_attrs=read-write, or one host, in the connection string",
			"the replication session is on system %s timeline %d, the SQL session on system %s timeline %d", sys.ID, sys.Timeline, other.ID, other.Timeline)
	}
	return nil
}

// history is needed only where the row is of another timeline (rule 2).
func (e *exam) history(ctx context.Context, stored *checkpoint.Row, sys checkpoint.System) ([]checkpoint.TimelineSwitch, error) {
	if stored == nil || stored.Timeline == sys.Timeline {
		return nil, nil
	}
	s, err := e.openStream(ctx)
	if err != nil {
		return nil, err
	}
	switches, err := s.TimelineHistory(ctx, sys.Timeline)
	if err != nil {
		return nil, err
	}
	history := make([]checkpoint.TimelineSwitch, len(switches))
	for i, sw := range switches {
		history[i] = checkpoint.TimelineSwitch{Timeline: sw.Timeline, End: sw.Switch}
	}
	return history, nil
}

// physicalSQL tells of the standbys that are attached now (walsenders but $2 that hold no
// logical slot: a role without pg_read_all_stats sees no more of them), and of the slots
// that synchronized_standby_slots names: absent, or with nobody on them.
const physicalSQL = `SELECT
  (SELECT count(*) FROM pg_catalog.pg_stat_replication r WHERE r.pid <> $2 AND NOT EXISTS (
     SELECT FROM pg_catalog.pg_replication_slots s WHERE s.active_pid = r.pid AND s.slot_type = 'logical')),
  ARRAY(SELECT w FROM pg_catalog.unnest($1::text[]) w WHERE NOT EXISTS (
     SELECT FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = w AND s.slot_type = 'physical' AND s.active))`

func checkFailover(ctx context.Context, e *exam) []answer {
	slot, err := e.usableSlot(ctx)
	if err != nil {
		return unanswered(err)
	}
	set, err := e.readSettings(ctx)
	if err != nil {
		return unanswered(err)
	}
	waited := []string{}
	for name := range strings.SplitSeq(set["synchronized_standby_slots"].value, ",") {
		if name = strings.Trim(strings.TrimSpace(name), `"`); name != "" {
			waited = append(waited, name)
		}
	}
	var standbys int
	var absent []string
	ours := uint32(0)
	if s, err := e.openStream(ctx); err == nil {
		ours = s.BackendPID()
	}
	if err := e.row(ctx, physicalSQL, []any{waited, int32(ours)}, &standbys, &absent); err != nil {
		return unanswered(err)
	}
	switch {
	case slot.Synced:
		return fail("connect to the primary", "the slot is a copy that a standby keeps")
	case e.server.major < 17:
		return ok("PostgreSQL %d has no failover slots (17 has): after a promotion the slot is gone, and postrider recover brings table and topics together", e.server.major)
	case slot.Failover && len(waited) == 0:
		return fail("ALTER SYSTEM SET synchronized_standby_slots = '<the standby''s physical slot>'; SELECT pg_reload_conf()",
			"the slot is a failover slot, and synchronized_standby_slots is empty: events go out that no standby has, and a promotion undoes them")
	case slot.Failover && len(absent) > 0:
		return fail("start the standby that uses it, or take it out of synchronized_standby_slots",
			"nobody uses slot %s, which synchronized_standby_slots names: the stream waits for it, and nothing is published", strings.Join(absent, ", "))
	case slot.Failover:
		return ok("a failover slot that waits for %s; whether the standby copies it (sync_replication_slots) is told there only", strings.Join(waited, ", "))
	case standbys > 0:
		return warn("let the relay drain, drop the slot, and make it with postrider setup --failover; or know that postrider recover is due after a promotion",
			"%s attached, and the slot is no failover slot: after a promotion it does not exist", plural(standbys, "standby is", "standbys are"))
	}
	return ok("no standby is attached, and the slot is no failover slot")
}
