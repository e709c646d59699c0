#!/bin/sh
# Goes back from Postrider to the polling relay while events are written. See docs/migrate-from-polling.md.
#
#   STOP_RELAY    a command that stops "postrider run" with SIGTERM and returns when it has ended
#   START_POLLER  a command that starts the poller, without $POLLER_WHERE or anything in its place, and returns; where it runs
#                 for a part already it starts it anew
. "$(dirname "$0")/lib.sh"
: "${STOP_RELAY:?}" "${START_POLLER:?}"
old=$(ours "$CONFIG")

say "1. Postrider publishes what is committed, and stops"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
ticked_off "$PUBLISHER"
sh -c "$STOP_RELAY"

say "2. rows that are proved to be published are marked; late commits among them are not, and what is parked is not"
marked=$(mark "$PUBLISHER" "$old")
twice=$(sql "SELECT count(*) FROM $OUTBOX WHERE ($PENDING) AND ($old)")
say "   $marked marked; $twice are left, of which the poller publishes some for the second time"

say "3. the poller starts"
POLLER_WHERE=true sh -c "$START_POLLER"
say "done. When you will not come back: postrider checkpoint drop --config $CONFIG --confirm $PUBLISHER --reason \"back to the poller\" (the slot holds back WAL)"
