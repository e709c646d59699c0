-- +goose Up
CREATE TABLE IF NOT EXISTS postrider.checkpoint (
    publisher          text PRIMARY KEY,
    slot               text NOT NULL UNIQUE,
    system_id          text NOT NULL,
    timeline           integer NOT NULL,
    slot_birth_lsn     pg_lsn,
    confirmed_lsn      pg_lsn NOT NULL,
    commit_time        timestamptz,
    events_published   bigint NOT NULL DEFAULT 0,
    idle               boolean NOT NULL DEFAULT false,
    snapshot           pg_snapshot,
    oldest_unconfirmed timestamptz,
    holder             text,
    walsender_pid      integer,
    claimed_at         timestamptz,
    updated_at         timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

COMMENT ON TABLE postrider.checkpoint IS 'One row a publisher: up to where everything is published or parked';
COMMENT ON COLUMN postrider.checkpoint.confirmed_lsn IS 'End LSN: transactions that ended at or before it are published or parked';
COMMENT ON COLUMN postrider.checkpoint.slot_birth_lsn IS 'Where setup created the slot; null where it was found';
COMMENT ON COLUMN postrider.checkpoint.idle IS 'The slot may stand past confirmed_lsn, over WAL without events';
COMMENT ON COLUMN postrider.checkpoint.snapshot IS 'Every outbox row that this snapshot sees is published or parked';
COMMENT ON COLUMN postrider.checkpoint.oldest_unconfirmed IS 'Commit time of the oldest event received and not published at updated_at';

CREATE TABLE IF NOT EXISTS postrider.audit (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT clock_timestamp(),
    publisher text NOT NULL,
    actor     text NOT NULL,
    db_user   text NOT NULL DEFAULT session_user,
    action    text NOT NULL,
    detail    jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX IF NOT EXISTS audit_publisher_at ON postrider.audit (publisher, at);

COMMENT ON TABLE postrider.audit IS 'What moved or claimed a position, and who; rows are only added';
