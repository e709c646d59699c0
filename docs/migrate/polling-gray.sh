#!/bin/sh
# One step of a replacement by parts, forward or back, while events are written: Postrider publishes the rows that
# $OURS names, and the poller the rest. See docs/migrate-from-polling.md.
#
#   CONFIG        of Postrider after the step: publisher.name, slot and publication are of this step alone
#   OURS          SQL: the rows that Postrider publishes after the step, such as "aggregate_type IN ('order', 'refund')"; true: all
#   FROM_CONFIG   of Postrider before the step; empty where it publishes nothing yet
#   STOP_RELAY    a command that stops "postrider run --config $FROM_CONFIG" with SIGTERM and returns when it has ended
#   START_RELAY   a command that starts "postrider run --config $CONFIG" and returns
#   STOP_POLLER   a command that stops the poller, all instances of it, and returns when it has published what it had taken
#   START_POLLER  a command that starts the poller with $POLLER_WHERE among the conditions of its query; not run where OURS=true
. "$(dirname "$0")/lib.sh"
: "${OURS:?}" "${START_RELAY:?}" "${STOP_POLLER:?}" "${FROM_CONFIG:=}"
[ "$OURS" = true ] || : "${START_POLLER:?}"
. "$(dirname "$0")/step.sh"

begin
coming="($new) AND ($old) IS NOT TRUE"
staying="($new) AND ($old)"
going="($old) AND ($new) IS NOT TRUE"

say "2. the publishers so far bring out what is from before the slot"
drained "$coming"
caught_up

say "3. the poller stops"
sh -c "$STOP_POLLER"
still_drained
unparked "$going"
come=$(twice "NOT ($PENDING) AND ($coming)" "$birth")
stay=0 go=0
if [ -n "$FROM_CONFIG" ]; then
  say "4. Postrider so far publishes what is committed, and stops"
  stop_relay
  unparked "$going"
  stay=$(twice "$staying" "$birth")
  marked=$(mark "$FROM_PUBLISHER" "$going")
  say "   $marked of the rows that the poller gets are proved to be published, and marked"
  go=$(sql "SELECT count(*) FROM $OUTBOX WHERE ($PENDING) AND ($going)")
fi

say "5. both start. Twice come at most: $come events that come to Postrider, $stay that stay with it, $go that go back to the poller"
sh -c "$START_RELAY"
[ "$OURS" = true ] || POLLER_WHERE="($new) IS NOT TRUE" sh -c "$START_POLLER"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
forget
say "done: Postrider publishes $new"
