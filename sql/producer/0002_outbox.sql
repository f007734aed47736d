-- The outbox: a business transaction writes its events here, next to its own rows, so that both
-- commit or neither does. The connector reads the inserts from the log; nothing polls this table.
-- Needs: CREATE on schema outflow.

CREATE TABLE IF NOT EXISTS outflow.outbox (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id       text        NOT NULL DEFAULT gen_random_uuid()::text
                               CONSTRAINT outbox_event_id_key UNIQUE
                               CONSTRAINT outbox_event_id_check CHECK (event_id <> ''),
    aggregate_type text        NOT NULL
                               CONSTRAINT outbox_aggregate_type_check CHECK (aggregate_type <> ''),
    aggregate_id   text        NOT NULL,
    seq            bigint,
    event_type     text        NOT NULL,
    payload        jsonb,
    headers        jsonb,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE outflow.outbox IS
    'events of committed transactions; rows may be deleted once they are published and no replay needs them';
COMMENT ON COLUMN outflow.outbox.id IS
    'order of insertion, not of commit: never resume from it. Events are ordered by their commits';
COMMENT ON COLUMN outflow.outbox.event_id IS
    'names the fact and stays the same over every delivery: consumers deduplicate by it. Any text; give it yourself to make a retry of the business operation fail instead of emitting twice';
COMMENT ON COLUMN outflow.outbox.aggregate_type IS
    'what the event is about; chooses the stream';
COMMENT ON COLUMN outflow.outbox.aggregate_id IS
    'which one it is about; order is kept within one aggregate';
COMMENT ON COLUMN outflow.outbox.seq IS
    'the producer''s own number within the aggregate, rising by one: lets consumers see a gap. NULL where none is kept';
COMMENT ON COLUMN outflow.outbox.payload IS
    'the body. Published byte for byte as PostgreSQL prints it: numbers keep every digit';
COMMENT ON COLUMN outflow.outbox.headers IS
    'metadata for handlers (trace ids, tenant), a JSON object';
COMMENT ON COLUMN outflow.outbox.created_at IS
    'when the row was written, by the clock and not by the start of the transaction';
