#!/bin/sh
# Replaces a Debezium connector by Postrider while events are written. See docs/migrate-from-debezium.md.
#
#   DEBEZIUM_SLOT     the connector's slot.name
#   STOP_CONNECTOR    a command that stops the connector (not: deletes its slot) and returns when it has stopped
#   START_RELAY       a command that starts "postrider run" and returns
. "$(dirname "$0")/lib.sh"
: "${DEBEZIUM_SLOT:?}" "${STOP_CONNECTOR:?}" "${START_RELAY:?}"

say "1. publication and slot of Postrider: every row from now on comes on its stream too"
"$POSTRIDER" setup --config "$CONFIG"
birth=$(birth slot_birth_lsn)
seen=$(birth birth_snapshot)
new=$(ours "$CONFIG")

say "2. the connector publishes everything from before $birth"
connector_passed "$birth"

say "3. the connector stops"
sh -c "$STOP_CONNECTOR"
n=$(twice "$new" "$seen")

say "4. Postrider starts at its slot. Of the rows that are in the table at most $n come twice"
sh -c "$START_RELAY"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
say "done: everything that is committed is published. The slot $DEBEZIUM_SLOT holds back WAL until you drop it or go back"
