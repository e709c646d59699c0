-- +goose Up
ALTER TABLE postrider.parked
    ADD COLUMN IF NOT EXISTS dead_letter_topic text,
    ADD COLUMN IF NOT EXISTS dead_letter_at timestamptz,
    ADD COLUMN IF NOT EXISTS dead_letter_error text;

-- Copies that are still to be sent, in the order in which they came.
CREATE INDEX IF NOT EXISTS parked_dead_letter ON postrider.parked (publisher, dead_letter_topic, id)
    WHERE dead_letter_topic IS NOT NULL AND dead_letter_at IS NULL;

COMMENT ON COLUMN postrider.parked.dead_letter_topic IS 'Gets a copy of the event; null where none does';
COMMENT ON COLUMN postrider.parked.dead_letter_at IS 'When the copy was acknowledged, or given up with dead_letter_error';
