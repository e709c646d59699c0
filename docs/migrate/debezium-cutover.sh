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
birth=$(sql "SELECT slot_birth_lsn FROM postrider.checkpoint WHERE publisher = '$PUBLISHER'")
[ -n "$birth" ] || { say "it is not known where the slot begins: it was not made by this set-up. Drop it (postrider checkpoint drop) and begin again"; exit 5; }

say "2. the connector publishes everything from before $birth"
behind="SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$DEBEZIUM_SLOT' AND confirmed_flush_lsn >= '$birth'"
[ "$(sql "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$DEBEZIUM_SLOT'")" = 1 ] || { say "there is no slot $DEBEZIUM_SLOT"; exit 5; }
while [ "$(sql "$behind")" = 0 ]; do
  say "   it has confirmed up to $(sql "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = '$DEBEZIUM_SLOT'")"
  sleep 1
done

say "3. the connector stops"
sh -c "$STOP_CONNECTOR"
say "   it has published beyond $birth: what comes after that, up to $(sql "SELECT pg_current_wal_lsn()"), may come twice"

say "4. Postrider starts at its slot"
sh -c "$START_RELAY"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now
say "done: everything that is committed is published. The slot $DEBEZIUM_SLOT holds back WAL until you drop it or go back"
