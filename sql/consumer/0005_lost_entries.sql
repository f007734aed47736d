-- What a stream lost before a consumer had applied it, so that it can be published again.
--
-- Run it as the owner of the tables, as the files before it. It may be run again at any time.

CREATE TABLE IF NOT EXISTS outflow.lost_entries (
    consumer_id  text        NOT NULL,
    stream       text        NOT NULL,
    above_id     text        NOT NULL CHECK (above_id ~ '^[0-9]+-[0-9]+$'),
    up_to_id     text        NOT NULL CHECK (up_to_id ~ '^[0-9]+-[0-9]+$'),
    entries      bigint      NOT NULL CHECK (entries > 0),
    was_pending  boolean     NOT NULL,
    detected_at  timestamptz NOT NULL DEFAULT now(),
    settled_at   timestamptz,
    -- a worker that is killed after it wrote this down sees the same entries again
    CONSTRAINT lost_entries_pkey PRIMARY KEY (consumer_id, stream, up_to_id)
);

CREATE INDEX IF NOT EXISTS lost_entries_open ON outflow.lost_entries (consumer_id) WHERE settled_at IS NULL;

COMMENT ON TABLE outflow.lost_entries IS
    'Entries that were trimmed or deleted from a stream before the consumer had applied them. Their events are to be '
    'published again from the outbox; then settled_at is set.';
COMMENT ON COLUMN outflow.lost_entries.above_id IS 'They stood above this id ...';
COMMENT ON COLUMN outflow.lost_entries.up_to_id IS '... and not above this one.';
COMMENT ON COLUMN outflow.lost_entries.entries IS 'How many they were.';
COMMENT ON COLUMN outflow.lost_entries.was_pending IS
    'A worker had them in work; otherwise they were never delivered to the group.';
COMMENT ON COLUMN outflow.lost_entries.settled_at IS 'When somebody saw to it; open while NULL.';

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        RETURN;
    END IF;
    GRANT SELECT, INSERT, UPDATE (settled_at) ON outflow.lost_entries TO outflow_consumer;
END
$$;
