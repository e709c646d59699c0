#!/bin/sh
# Goes back from Postrider to the polling relay while events are written. See docs/migrate-from-polling.md.
#
#   STOP_RELAY    a command that stops "postrider run" with SIGTERM and returns when it has ended
#   START_POLLER  a command that starts the poller and returns
#   DISPATCHED    SQL: what an UPDATE sets in rows that need not be published again (default: dispatched_at = now())
. "$(dirname "$0")/lib.sh"
: "${STOP_RELAY:?}" "${START_POLLER:?}" "${DISPATCHED:=dispatched_at = now()}"

say "1. Postrider publishes what is committed, and stops"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now
sh -c "$STOP_RELAY"

say "2. rows that are proved to be published are marked; late commits among them are not, since no row is chosen by its time or id"
seen=$(sql "SELECT snapshot FROM postrider.checkpoint WHERE publisher = '$PUBLISHER'")
[ -n "$seen" ] || { say "no snapshot is ticked off yet: start Postrider, let it run for some seconds, and begin again"; exit 5; }
marked=$(sql "WITH marked AS (UPDATE $OUTBOX SET $DISPATCHED WHERE ($PENDING)
    AND $(xid "'$seen'::pg_snapshot") < pg_snapshot_xmin('$seen')::text::bigint RETURNING 1) SELECT count(*) FROM marked")
twice=$(sql "SELECT count(*) FROM $OUTBOX WHERE $PENDING")
say "   $marked marked; $twice are left, of which the poller publishes some for the second time"

say "3. the poller starts"
sh -c "$START_POLLER"
say "done. When you will not come back: postrider checkpoint drop --config $CONFIG --confirm $PUBLISHER --reason \"back to the poller\" (the slot holds back WAL)"
