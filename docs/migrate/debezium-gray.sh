#!/bin/sh
# One step of a replacement by parts, forward or back, while events are written: Postrider publishes the rows that
# $OURS names, and the Debezium connector the rest. See docs/migrate-from-debezium.md.
#
#   CONFIG           of Postrider after the step: publisher.name, slot and publication are of this step alone
#   OURS             SQL: the rows that Postrider publishes after the step, such as "aggregate_type IN ('order', 'refund')"; true: all
#   FROM_CONFIG      of Postrider before the step; empty where it publishes nothing yet
#   STOP_RELAY       a command that stops "postrider run --config $FROM_CONFIG" with SIGTERM and returns when it has ended
#   START_RELAY      a command that starts "postrider run --config $CONFIG" and returns
#   DEBEZIUM_SLOT    the connector's slot.name
#   STOP_CONNECTOR   a command that stops the connector (not: deletes its slot) and returns when it does not run
#   START_CONNECTOR  a command that starts it where it stopped, with a filter that lets the rest through; not run where OURS=true
. "$(dirname "$0")/lib.sh"
: "${OURS:?}" "${START_RELAY:?}" "${DEBEZIUM_SLOT:?}" "${STOP_CONNECTOR:?}" "${FROM_CONFIG:=}"
[ "$OURS" = true ] || : "${START_CONNECTOR:?}"
. "$(dirname "$0")/step.sh"

begin
unparked false

say "2. the publishers so far bring out what is from before $birth_lsn"
since=$birth
if [ "$old" = "(true)" ]; then # the connector does not run; it has stopped behind the birth of the slot that Postrider reads so far
  since=$(sql "SELECT birth_snapshot FROM postrider.checkpoint WHERE publisher = '$FROM_PUBLISHER'")
else
  connector_passed "$birth_lsn"
fi
caught_up

say "3. the connector stops"
sh -c "$STOP_CONNECTOR"
if [ -n "$FROM_CONFIG" ]; then
  say "4. Postrider so far publishes what is committed, also what the connector has passed over until now, and stops"
  stop_relay
  unparked false
fi
come=$(twice "($new) AND ($old) IS NOT TRUE" "$birth")
stay=$(twice "($new) AND ($old)" "$birth")
go=$(twice "($old) AND ($new) IS NOT TRUE" "$since")

say "5. both start. Twice come at most: $come events that come to Postrider, $stay that stay with it, $go that go back to the connector"
sh -c "$START_RELAY"
[ "$OURS" = true ] || sh -c "$START_CONNECTOR"
"$POSTRIDER" checkpoint wait --config "$CONFIG" --now --timeout "$TIMEOUT"
forget
say "done: Postrider publishes $new"
