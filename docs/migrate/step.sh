# What polling-gray.sh and debezium-gray.sh share: a step from one set of rows that Postrider publishes to another. Each has a
# publication of its own, whose row filter does not change, and a slot of its own, whose birth is the seam. lib.sh comes first.

PUBLICATION=$(setting "$CONFIG" postgres,publication,0)
FROM_PUBLISHER=
if [ -n "$FROM_CONFIG" ]; then
  : "${STOP_RELAY:?}"
  FROM_PUBLISHER=$(setting "$FROM_CONFIG" publisher,name)
  [ "$FROM_PUBLISHER" != "$PUBLISHER" ] || fail "$CONFIG and $FROM_CONFIG have the same publisher.name: each step has its own, and its own slot and publication"
fi

# begin makes publication and slot; then $new, $old and $birth are known.
begin() {
  say "1. publication and slot: every row of $OURS from now on comes on their stream too"
  publish
  "$POSTRIDER" setup --config "$CONFIG"
  birth=$(birth birth_snapshot)
  birth_lsn=$(birth slot_birth_lsn)
  [ "$(sql "SELECT count(*) FROM postrider.checkpoint WHERE publisher = '$PUBLISHER' AND confirmed_lsn > slot_birth_lsn")" = 0 ] ||
    fail "publisher $PUBLISHER has run already; a step wants one of its own"
  new=$(ours "$CONFIG") old=false
  if [ -n "$FROM_CONFIG" ]; then
    old=$(ours "$FROM_CONFIG")
    unparked "($old) AND ($new) IS NOT TRUE"
  fi
}

# publish makes the publication. An UPDATE of the table would fail if it published updates: its filter looks at a column that is
# not in the replica identity. Its comment tells a second run that it is this step's.
publish() {
  [ "$OURS" = true ] || [ "$(sql "SHOW server_version_num")" -ge 150000 ] || fail "row filters came with PostgreSQL 15: before, all goes at once"
  query pub="$PUBLICATION" ours="$OURS" outbox="$OUTBOX" <<'SQL'
BEGIN;
SELECT format('CREATE PUBLICATION %I FOR TABLE %s %s WITH (publish = ''insert'', publish_via_partition_root = true)', :'pub', :'outbox'::regclass,
    CASE WHEN :'ours' <> 'true' THEN format('WHERE (%s)', :'ours') END)
 WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = :'pub')
UNION ALL
SELECT format('COMMENT ON PUBLICATION %I IS %L', :'pub', 'step: ' || :'ours')
 WHERE NOT EXISTS (SELECT FROM pg_publication WHERE pubname = :'pub')
\gexec
COMMIT;
SQL
  said=$(query pub="$PUBLICATION" <<'SQL'
SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = :'pub'
SQL
  )
  [ "$said" = "step: $OURS" ] || fail "publication $PUBLICATION is there already, and not from this step; take another name, or drop it"
}

# caught_up: Postrider so far has published everything from before the new slot.
caught_up() {
  [ -n "$FROM_CONFIG" ] || return 0
  "$POSTRIDER" checkpoint wait --config "$FROM_CONFIG" --lsn "$birth_lsn" --timeout "$TIMEOUT"
  ticked_off "$FROM_PUBLISHER"
}

# unparked WHICH: parked events are of the publisher that has parked them. The next one would not hold their keys back. Those of
# rows that fit may stay parked.
unparked() {
  [ -n "$FROM_CONFIG" ] || return 0
  n=$(held "$FROM_PUBLISHER" "$1")
  [ "$n" -eq 0 ] || fail "$n events of publisher $FROM_PUBLISHER are parked. Retry or discard them first (postrider parked list --config $FROM_CONFIG); what was stopped is to be started as it was"
}

stop_relay() {
  "$POSTRIDER" checkpoint wait --config "$FROM_CONFIG" --now --timeout "$TIMEOUT"
  sh -c "$STOP_RELAY"
}

# forget drops the slot of the step before: nothing is left to be read from it, and it would hold back WAL for ever.
forget() {
  [ -n "$FROM_CONFIG" ] || return 0
  say "6. publisher $FROM_PUBLISHER is dropped: its slot would hold back WAL"
  "$POSTRIDER" checkpoint drop --config "$FROM_CONFIG" --confirm "$FROM_PUBLISHER" --reason "followed by $PUBLISHER" --json >/dev/null
  query c="$("$POSTRIDER" config show --json --config "$FROM_CONFIG")" <<'SQL'
SELECT format('DROP PUBLICATION %I', pubname) FROM pg_publication
 WHERE (:'c'::jsonb #> '{postgres,publication}') ? pubname::text AND obj_description(oid, 'pg_publication') LIKE 'step: %'
\gexec
SQL
}
