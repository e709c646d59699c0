#!/bin/sh
# Replaces a polling relay by Postrider while events are written. See docs/migrate-from-polling.md.
#
#   STOP_POLLER   a command that stops the poller and returns when it has published what it had taken
#   START_RELAY   a command that starts "postrider run" and returns
. "$(dirname "$0")/lib.sh"
: "${STOP_POLLER:?}" "${START_RELAY:?}"

say "1. publication and slot: every row from now on comes on the stream too"
"$POSTRIDER" setup --config "$CONFIG"
birth=$(birth birth_snapshot)
new=$(ours "$CONFIG")

say "2. the poller brings out the rows from before the slot"
drained "$new"

say "3. the poller stops"
sh -c "$STOP_POLLER"
still_drained
n=$(twice "NOT ($PENDING) AND ($new)" "$birth")

say "4. Postrider starts at the slot. At most $n events that the poller has published since are published once more"
sh -c "$START_RELAY"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
say "done: everything that is committed is published"
