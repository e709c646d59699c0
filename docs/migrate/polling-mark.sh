#!/bin/sh
# Marks as dispatched what Postrider has published, beside a running relay: then the poller's index does not grow while the two
# share the outbox, and a way back has less to do. For cron, each minute. See docs/migrate-from-polling.md.
. "$(dirname "$0")/lib.sh"
old=$(ours "$CONFIG")
ticked_off "$PUBLISHER"
marked=$(mark "$PUBLISHER" "$old")
say "$marked rows that publisher $PUBLISHER has published are marked"
