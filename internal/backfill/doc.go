// Package backfill publishes the rows of the outbox that are from before the slot.
//
// setup keeps what pg_current_snapshot() was at the slot's birth. Rows that it sees were
// committed before the slot existed and are not on its stream; all others are. So table
// and stream meet without gap or overlap, late commits included (trap 28), as long as
// nobody touches the rows. A row that was updated since has another transaction's
// id, and looks new: of such rows those are taken that do not come on the stream, which is
// read for that from the slot on, and not consumed.
//
// The rows have to go out before the stream's: they are older. So nothing may be
// published yet, and `run` does not start while a backfill is not ended.
//
// The list of events is made once (outbox.Reader.Plan) and worked off (reissue.Run). It may be
// taken up after any end; what was on its way at a crash is published again.
package backfill
