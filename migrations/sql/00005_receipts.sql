-- +goose Up
CREATE TABLE IF NOT EXISTS postrider.receipt (
    publisher    text NOT NULL,
    event_id     text NOT NULL,
    topic        text NOT NULL,
    partition    integer NOT NULL,
    kafka_offset bigint NOT NULL,
    acked_at     timestamptz NOT NULL,
    commit_lsn   pg_lsn,
    event_index  bigint
);

-- By hash: an event id may be longer than a B-tree takes.
CREATE INDEX IF NOT EXISTS receipt_event_id ON postrider.receipt USING hash (event_id);
CREATE INDEX IF NOT EXISTS receipt_acked_at ON postrider.receipt (publisher, acked_at);

-- There is no key: it would cost every event an index. Without this, rows could not be
-- deleted where a publication is for all tables.
ALTER TABLE postrider.receipt REPLICA IDENTITY FULL;

COMMENT ON TABLE postrider.receipt IS 'Where events were acknowledged (receipts.keep); may lack some after a crash; rows are only added, and deleted by age';
COMMENT ON COLUMN postrider.receipt.commit_lsn IS 'Where the commit record of the event''s transaction starts; null where the event did not come from the stream';
