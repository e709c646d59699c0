# What the scripts of this folder share. They are plain sh, with psql and the postrider binary; the tests of the
# project run them as they are.
#
#   POSTRIDER   the binary                                     (default: postrider)
#   CONFIG      its configuration                              (default: postrider.yaml)
#   PGURL       a connection for psql, of a role that may read the schema postrider and write the outbox
#   PUBLISHER   publisher.name of the configuration
#   OUTBOX      the outbox table, as SQL                       (default: public.outbox)
#   PENDING     SQL: rows that the poller has still to publish (default: dispatched_at IS NULL)
set -eu
: "${POSTRIDER:=postrider}" "${CONFIG:=postrider.yaml}" "${PGURL:?}" "${PUBLISHER:?}" "${OUTBOX:=public.outbox}"
: "${PENDING:=dispatched_at IS NULL}"

say() { printf '%s %s\n' "$(date -u +%H:%M:%S)" "$*"; }

sql() { psql "$PGURL" -X -q -A -t -v ON_ERROR_STOP=1 -c "$1"; }

# xid SNAPSHOT: SQL for the 64-bit id of the transaction that wrote a row, given a pg_snapshot of about the same time. The
# system column xmin holds its low 32 bits.
xid() {
  m="pg_snapshot_xmax($1)::text::bigint"
  printf '(%s + ((xmin::text::bigint - (%s & 4294967295) + 6442450944) %% 4294967296) - 2147483648)' "$m" "$m"
}
