# What the scripts of this folder share. They are plain sh, with psql and the postrider binary; the tests of the
# project run them as they are.
#
#   POSTRIDER   the binary                                     (default: postrider)
#   CONFIG      its configuration                              (default: postrider.yaml)
#   PGURL       a connection for psql, of a role that may read the schema postrider and write the outbox; for a step
#               by parts it has to own the outbox, too, and for a poller it may create tables in the schema public
#   OUTBOX      the outbox table, as SQL                       (default: public.outbox)
#   EVENT_ID    its column of the event id, as SQL             (default: that of the configuration's first source)
#   PENDING     SQL: rows that the poller has still to publish (default: dispatched_at IS NULL)
#   DISPATCHED  SQL: what an UPDATE sets in rows that need not be published again (default: dispatched_at = now())
#   TIMEOUT     how long Postrider may take to catch up        (default: 10m)
set -eu
: "${POSTRIDER:=postrider}" "${CONFIG:=postrider.yaml}" "${PGURL:?}" "${OUTBOX:=public.outbox}" "${TIMEOUT:=10m}"
: "${PENDING:=dispatched_at IS NULL}" "${DISPATCHED:=dispatched_at = now()}"

say() { printf '%s %s\n' "$(date -u +%H:%M:%S)" "$*"; }

fail() { say "$*" >&2; exit 5; }

sql() { psql "$PGURL" -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"; }

# query NAME=VALUE…: runs SQL from standard input, in which :'NAME' is a value.
query() {
  args=
  for pair; do args="$args -v $(quote "$pair")"; done
  eval "psql \"\$PGURL\" -X -q -A -t -v ON_ERROR_STOP=1 $args -f -"
}

quote() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

# setting FILE PATH: one value of a configuration, such as publisher,name
setting() {
  query c="$("$POSTRIDER" config show --json --config "$1")" path="$2" <<'SQL'
SELECT :'c'::jsonb #>> string_to_array(:'path', ',')
SQL
}

[ -n "${PUBLISHER:-}" ] || PUBLISHER=$(setting "$CONFIG" publisher,name)
[ -n "${EVENT_ID:-}" ] || EVENT_ID=$(setting "$CONFIG" sources,0,mapping,event_id | sed 's/"/""/g; s/.*/"&"/')
LIST="\"postrider_migration_$PUBLISHER\""

# ours FILE: SQL, the rows that the publications of a configuration let through: their row filters, as the catalog has them.
ours() {
  query c="$("$POSTRIDER" config show --json --config "$1")" outbox="$OUTBOX" <<'SQL'
SELECT coalesce(string_agg(DISTINCT '(' || coalesce(to_jsonb(t) ->> 'rowfilter', 'true') || ')', ' OR '), 'false')
  FROM pg_publication_tables t
 WHERE (:'c'::jsonb #> '{postgres,publication}') ? t.pubname::text
   AND (format('%I.%I', t.schemaname, t.tablename)::regclass = :'outbox'::regclass
     OR format('%I.%I', t.schemaname, t.tablename)::regclass IN (SELECT relid FROM pg_partition_tree(:'outbox'::regclass)))
SQL
}

# xid SNAPSHOT: SQL for the 64-bit id of the transaction that wrote a row, given a pg_snapshot of about the same time. The
# system column xmin holds its low 32 bits.
xid() {
  m="pg_snapshot_xmax($1)::text::bigint"
  printf '(%s + ((xmin::text::bigint - (%s & 4294967295) + 6442450944) %% 4294967296) - 2147483648)' "$m" "$m"
}

# after SNAPSHOT: SQL, the rows that the snapshot does not see; besides them those that were written anew since.
after() { printf "NOT pg_visible_in_snapshot(%s::text::xid8, '%s')" "$(xid "'$1'::pg_snapshot")" "$1"; }

# twice WHICH SNAPSHOT: how many rows there are behind a snapshot, of those that fit.
twice() { sql "SELECT count(*) FROM $OUTBOX WHERE ($1) AND $(after "$2")"; }

# birth COLUMN: of the slot of $CONFIG.
birth() {
  value=$(sql "SELECT $1 FROM postrider.checkpoint WHERE publisher = '$PUBLISHER'")
  [ -n "$value" ] || fail "it is not known where the slot begins: this set-up has not made it. Drop it (postrider checkpoint drop) and begin again"
  printf '%s' "$value"
}

# drained WHICH: waits until the poller has brought out the rows that are pending now, of those that fit. They are kept by
# id, since a poller that writes a row before it publishes it (a lease, a count of attempts) hides its age.
drained() {
  sql "SET client_min_messages = warning; DROP TABLE IF EXISTS $LIST;
    CREATE TABLE $LIST AS SELECT $EVENT_ID AS pending_id FROM $OUTBOX WHERE ($PENDING) AND ($1);
    CREATE INDEX ON $LIST (pending_id); ANALYZE $LIST"
  while :; do
    n=$(undrained)
    [ "$n" -gt 0 ] || break
    say "   $n to go"
    sleep 1
  done
}

undrained() { sql "SELECT count(*) FROM $OUTBOX WHERE ($PENDING) AND $EVENT_ID IN (SELECT pending_id FROM $LIST)"; }

# still_drained: after the poller has stopped.
still_drained() {
  n=$(undrained)
  [ "$n" -eq 0 ] || fail "$n rows from before the slot are pending again: start the poller as it was and begin again"
  sql "DROP TABLE $LIST"
}

# held WHICH: how many events are parked at $1 (a publisher's name) and stay there, other than those of rows that fit.
held() {
  sql "SELECT count(*) FROM postrider.parked p WHERE publisher = '$1' AND state IN ('parked', 'retry', 'publishing')
    AND NOT EXISTS (SELECT FROM $OUTBOX WHERE $EVENT_ID::text = p.event_id AND ($2))"
}

# ticked_off PUBLISHER: waits until the checkpoint proves of some rows that they are published: within seconds of the first start.
ticked_off() {
  until [ "$(sql "SELECT count(snapshot) FROM postrider.checkpoint WHERE publisher = '$1'")" = 1 ]; do
    say "   no snapshot is ticked off yet; Postrider has to run for some seconds"
    sleep 1
  done
}

# mark PUBLISHER WHICH: marks the pending rows that the publisher's checkpoint proves to be published, of those that fit, and says
# how many. A late commit is not marked, since no row is chosen by its time or id; nor is an event that was parked and not
# published: the poller will bring it out, and those of its key behind it.
mark() {
  seen=$(sql "SELECT snapshot FROM postrider.checkpoint WHERE publisher = '$1'")
  sql "WITH marked AS (UPDATE $OUTBOX AS postrider_o SET $DISPATCHED WHERE ($PENDING) AND ($2)
      AND $(xid "'$seen'::pg_snapshot") < pg_snapshot_xmin('$seen')::text::bigint
      AND NOT EXISTS (SELECT FROM postrider.parked p WHERE p.publisher = '$1' AND p.event_id = postrider_o.$EVENT_ID::text
        AND p.state IN ('parked', 'retry', 'publishing')) RETURNING 1) SELECT count(*) FROM marked"
}

# connector_passed LSN: waits until Debezium's slot has confirmed a position, which means that Connect has stored everything before
# it as published.
connector_passed() {
  [ "$(sql "SELECT count(*) FROM pg_replication_slots WHERE slot_name = '$DEBEZIUM_SLOT'")" = 1 ] || fail "there is no slot $DEBEZIUM_SLOT"
  while :; do
    at=$(sql "SELECT confirmed_flush_lsn || CASE WHEN confirmed_flush_lsn >= '$1' THEN ' passed' ELSE '' END FROM pg_replication_slots WHERE slot_name = '$DEBEZIUM_SLOT'")
    case $at in *passed) break ;; esac
    say "   it has confirmed up to $at"
    sleep 1
  done
}
