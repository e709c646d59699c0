#!/bin/sh
# Goes back from Postrider to the Debezium connector while events are written. See docs/migrate-from-debezium.md.
#
#   STOP_RELAY        a command that stops "postrider run" with SIGTERM and returns when it has ended
#   STOP_CONNECTOR    where it runs for a part: a command that stops it; else empty
#   START_CONNECTOR   a command that starts the connector, without a filter, and returns
. "$(dirname "$0")/lib.sh"
: "${STOP_RELAY:?}" "${START_CONNECTOR:?}" "${STOP_CONNECTOR:=}"

if [ -n "$STOP_CONNECTOR" ]; then
  say "0. the connector stops: what it has passed over until now is Postrider's to publish"
  sh -c "$STOP_CONNECTOR"
fi
say "1. Postrider publishes what is committed, and stops"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
sh -c "$STOP_RELAY"
n=$(held "$PUBLISHER" false)
if [ -n "$STOP_CONNECTOR" ] && [ "$n" -gt 0 ]; then
  fail "$n events are parked, and the connector may have passed over them. Start both as they were, and retry or discard them (postrider parked list)"
fi

since=$(sql "SELECT birth_snapshot FROM postrider.checkpoint WHERE publisher = '$PUBLISHER'")
n=$(twice "$(ours "$CONFIG")" "$since")
say "2. the connector goes on where it stopped: what Postrider has published since comes once more, at most $n of the rows that are in the table"
sh -c "$START_CONNECTOR"
say "done. When you will not come back: postrider checkpoint drop --config $CONFIG --confirm $PUBLISHER --reason \"back to Debezium\" (the slot holds back WAL)"
