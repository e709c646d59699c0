#!/bin/sh
# Replaces a polling relay by Postrider while events are written. See docs/migrate-from-polling.md.
#
#   STOP_POLLER   a command that stops the poller and returns when it has published what it had taken
#   START_RELAY   a command that starts "postrider run" and returns
. "$(dirname "$0")/lib.sh"
: "${STOP_POLLER:?}" "${START_RELAY:?}"

say "1. publication and slot: every row from now on comes on the stream too"
"$POSTRIDER" setup --config "$CONFIG"
birth=$(sql "SELECT birth_snapshot FROM postrider.checkpoint WHERE publisher = '$PUBLISHER'")
[ -n "$birth" ] || { say "no snapshot is stored: the slot was not made by this set-up. Drop it (postrider checkpoint drop) and begin again"; exit 5; }

say "2. the poller brings out the rows from before the slot"
left="SELECT count(*) FROM $OUTBOX WHERE ($PENDING) AND pg_visible_in_snapshot($(xid "'$birth'::pg_snapshot")::text::xid8, '$birth')"
while n=$(sql "$left") && [ "$n" -gt 0 ]; do
  say "   $n to go"
  sleep 1
done

say "3. the poller stops"
sh -c "$STOP_POLLER"
n=$(sql "$left")
[ "$n" -eq 0 ] || { say "$n rows from before the slot are pending again: start the poller and begin again"; exit 1; }
twice=$(sql "SELECT count(*) FROM $OUTBOX WHERE NOT ($PENDING)
  AND NOT pg_visible_in_snapshot($(xid "'$birth'::pg_snapshot")::text::xid8, '$birth')")

say "4. Postrider starts at the slot. At most $twice events that the poller has published since are published once more"
sh -c "$START_RELAY"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now
say "done: everything that is committed is published"
