-- +goose Up
CREATE TABLE IF NOT EXISTS postrider.parked (
    id                bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    publisher         text NOT NULL,
    slot              text NOT NULL,
    system_id         text NOT NULL,
    timeline          integer NOT NULL,
    commit_lsn        pg_lsn NOT NULL,
    event_index       bigint NOT NULL,
    commit_time       timestamptz,
    state             text NOT NULL DEFAULT 'parked' CHECK (state IN ('parked', 'retry', 'publishing', 'published', 'discarded')),
    unit              bytea,
    reason            text NOT NULL,
    error             text NOT NULL DEFAULT '',
    attempts          integer NOT NULL DEFAULT 0,
    parked_at         timestamptz NOT NULL DEFAULT clock_timestamp(),
    tried_at          timestamptz,
    finished_at       timestamptz,
    owner             text,
    event_id          text,
    aggregate_type    text,
    aggregate_id      text,
    aggregate_version text,
    event_type        text,
    source_table      text,
    topic             text,
    partition         integer,
    record_millis     bigint,
    key               bytea,
    value             bytea,
    header_names      bytea[],
    header_values     bytea[],
    row_shape         jsonb,
    row_values        bytea[],
    repaired          boolean NOT NULL DEFAULT false,
    erased_at         timestamptz,
    noted             boolean NOT NULL DEFAULT false,
    UNIQUE (publisher, system_id, commit_lsn, event_index)
);

-- Of the relay: the outstanding rows of a unit, in order; what was asked of it.
CREATE INDEX IF NOT EXISTS parked_unit ON postrider.parked (publisher, unit, commit_lsn, event_index)
    WHERE state IN ('parked', 'retry', 'publishing');
CREATE INDEX IF NOT EXISTS parked_asked ON postrider.parked (publisher, commit_lsn, event_index)
    WHERE state = 'retry' OR (state = 'discarded' AND NOT noted);
CREATE INDEX IF NOT EXISTS parked_done ON postrider.parked (publisher, finished_at)
    WHERE state IN ('published', 'discarded');
CREATE INDEX IF NOT EXISTS parked_event_id ON postrider.parked USING hash (event_id);

COMMENT ON TABLE postrider.parked IS 'Events that could not be published: change them with `postrider parked`, which keeps the audit';
COMMENT ON COLUMN postrider.parked.commit_lsn IS 'Where the commit record of the event''s transaction starts; with event_index it names the event';
COMMENT ON COLUMN postrider.parked.state IS 'parked, retry (asked for), publishing (on its way), published, discarded';
COMMENT ON COLUMN postrider.parked.unit IS 'Digest of topic and key: later events of the same unit wait for this one; null where nothing waits';
COMMENT ON COLUMN postrider.parked.reason IS 'Why it was refused; held: it stands behind another row of its unit';
COMMENT ON COLUMN postrider.parked.row_shape IS 'The row as it was streamed, where the router refused it; a retry routes it again';
COMMENT ON COLUMN postrider.parked.noted IS 'The relay knows that the row was discarded';
