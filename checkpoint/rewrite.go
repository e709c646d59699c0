package checkpoint

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/event"
)

// Rewrite stores a whole row in the caller's transaction: the position that a recovery
// ends with. It writes only while the slot stands at the given LSN and nobody holds it,
// and says whether it did. The caller keeps the audit.
func Rewrite(ctx context.Context, tx pgx.Tx, row Row, slotAt event.LSN) (written bool, err error) {
	var birth *string
	if row.SlotBirth != 0 {
		text := row.SlotBirth.String()
		birth = &text
	}
	tag, err := tx.Exec(ctx, `
		INSERT INTO postrider.checkpoint AS c
			(publisher, slot, system_id, timeline, slot_birth_lsn, birth_snapshot, confirmed_lsn, commit_time, events_published, idle, snapshot,
			 oldest_unconfirmed, holder, walsender_pid, claimed_at, updated_at)
		SELECT $1, $2::text, $3, $4, $5::text::pg_lsn, $6::text::pg_snapshot, $7::text::pg_lsn, $8, $9, false, $10::text::pg_snapshot,
			NULL, $11, NULL, NULL, clock_timestamp()
		WHERE EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = $2::text AND NOT active AND confirmed_flush_lsn = $12::text::pg_lsn)
		ON CONFLICT (publisher) DO UPDATE SET
			slot = excluded.slot, system_id = excluded.system_id, timeline = excluded.timeline, slot_birth_lsn = excluded.slot_birth_lsn,
			birth_snapshot = excluded.birth_snapshot, confirmed_lsn = excluded.confirmed_lsn, commit_time = excluded.commit_time,
			events_published = excluded.events_published, idle = excluded.idle, snapshot = excluded.snapshot,
			oldest_unconfirmed = excluded.oldest_unconfirmed, holder = excluded.holder, walsender_pid = excluded.walsender_pid,
			claimed_at = excluded.claimed_at, updated_at = excluded.updated_at`,
		row.Publisher, row.Slot, row.SystemID, row.Timeline, birth, nullText(row.BirthSnapshot), row.Confirmed.String(),
		nullTime(row.CommitTime), int64(row.Events), nullText(row.Snapshot), row.Holder, slotAt.String())
	return tag.RowsAffected() == 1, err
}
