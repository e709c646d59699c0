#!/bin/sh
# Goes back from Postrider to the Debezium connector while events are written. See docs/migrate-from-debezium.md.
#
#   STOP_RELAY        a command that stops "postrider run" with SIGTERM and returns when it has ended
#   START_CONNECTOR   a command that starts the connector and returns
. "$(dirname "$0")/lib.sh"
: "${STOP_RELAY:?}" "${START_CONNECTOR:?}"

say "1. Postrider publishes what is committed, and stops"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now
sh -c "$STOP_RELAY"

say "2. the connector goes on where it stopped: everything that Postrider has published since comes once more"
sh -c "$START_CONNECTOR"
say "done. When you will not come back: postrider checkpoint drop --config $CONFIG --confirm $PUBLISHER --reason \"back to Debezium\" (the slot holds back WAL)"
