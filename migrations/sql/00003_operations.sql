-- +goose Up
ALTER TABLE postrider.checkpoint
    ADD COLUMN IF NOT EXISTS birth_snapshot pg_snapshot,
    ADD COLUMN IF NOT EXISTS paused_at timestamptz,
    ADD COLUMN IF NOT EXISTS paused_by text;

COMMENT ON COLUMN postrider.checkpoint.birth_snapshot IS 'Outbox rows that this snapshot sees are from before the slot: for `postrider backfill`';
COMMENT ON COLUMN postrider.checkpoint.paused_at IS 'Since when the relay holds the slot and publishes nothing, because somebody asked for it';

CREATE TABLE IF NOT EXISTS postrider.command (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    publisher   text NOT NULL,
    verb        text NOT NULL,
    params      jsonb NOT NULL DEFAULT '{}',
    asked_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    asked_by    text NOT NULL,
    taken_at    timestamptz,
    answered_at timestamptz,
    answer      jsonb,
    error       text
);

CREATE INDEX IF NOT EXISTS command_open ON postrider.command (publisher, id) WHERE answered_at IS NULL;

COMMENT ON TABLE postrider.command IS 'What a running relay is asked to do; it answers in the same row';

CREATE TABLE IF NOT EXISTS postrider.task (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    publisher   text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('backfill', 'recover', 'replay')),
    state       text NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'approved', 'running', 'done', 'failed', 'cancelled')),
    params      jsonb NOT NULL DEFAULT '{}',
    reason      text NOT NULL DEFAULT '',
    snapshot    pg_snapshot,
    total       bigint NOT NULL DEFAULT 0,
    done        bigint NOT NULL DEFAULT 0,
    refused     bigint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_by  text NOT NULL,
    approved_at timestamptz,
    approved_by text,
    started_at  timestamptz,
    finished_at timestamptz,
    detail      jsonb NOT NULL DEFAULT '{}'
);

CREATE INDEX IF NOT EXISTS task_open ON postrider.task (publisher, kind) WHERE state IN ('planned', 'approved', 'running', 'failed');

COMMENT ON TABLE postrider.task IS 'What publishes from the table: backfill, recover, replay; change them with the commands, which keep the audit';
COMMENT ON COLUMN postrider.task.done IS 'Items up to this number are acknowledged, or refused and noted so';

CREATE TABLE IF NOT EXISTS postrider.task_item (
    task         bigint NOT NULL REFERENCES postrider.task ON DELETE CASCADE,
    n            bigint NOT NULL,
    source_table text NOT NULL,
    event_id     text NOT NULL,
    outcome      text,
    PRIMARY KEY (task, n)
);

COMMENT ON TABLE postrider.task_item IS 'The events of a task, in the order in which they are published';
COMMENT ON COLUMN postrider.task_item.outcome IS 'Why it was not published; null where it was, or is yet to be';
