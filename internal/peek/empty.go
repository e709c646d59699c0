package peek

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/checkpoint"
	"github.com/postrider/postrider/event"
	"github.com/postrider/postrider/internal/operr"
)

// Empty says whether no event that is not published lies between a position of the
// publisher and a later one. stored is its row, from is up to where everything is
// published. At the first event found the look ends.
//
// What is not on the stream may still be an event where the publication was changed
// meanwhile (rule 7). So it must be as old as the row's snapshot, up to which a relay has
// watched it; else the answer is no.
func Empty(ctx context.Context, conn *pgx.Conn, cfg Config, stored *checkpoint.Row, from, until event.LSN) (bool, error) {
	snapshot, err := checkpoint.ParseSnapshot(stored.Snapshot)
	if err != nil {
		return false, nil // no snapshot, no proof
	}
	look, err := Open(ctx, conn, cfg, 1)
	if err != nil {
		return false, err
	}
	defer look.Close(ctx)
	if look.From() > from {
		return false, &operr.Error{Class: operr.Slot, Transient: true, Op: "look", Err: errors.New("the slot has moved on")}
	}
	report, err := look.Read(ctx, Options{Skip: from, Until: until, SystemID: stored.SystemID, Max: 1})
	if err != nil || report.Events > 0 || !report.Complete {
		return false, err
	}
	return unchangedSince(ctx, conn, cfg.Replication.Publications, snapshot)
}

// unchangedSince: every change of a publication writes one of these rows anew.
func unchangedSince(ctx context.Context, conn *pgx.Conn, publications []string, snapshot checkpoint.Snapshot) (bool, error) {
	sql := `SELECT count(*) = 0 FROM (
		SELECT p.xmin FROM pg_publication p WHERE p.pubname = ANY($1)
		UNION ALL SELECT r.xmin FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid WHERE p.pubname = ANY($1)`
	if conn.PgConn().ParameterStatus("server_version") >= "15" {
		sql += `
		UNION ALL SELECT n.xmin FROM pg_publication_namespace n JOIN pg_publication p ON p.oid = n.pnpubid WHERE p.pubname = ANY($1)`
	}
	var unchanged bool
	err := conn.QueryRow(ctx, sql+`) changed WHERE `+snapshot.UncoveredSQL("changed.xmin"), publications).Scan(&unchanged)
	if err != nil {
		return false, failed("look for", "changes of the publication", err)
	}
	return unchanged, nil
}
