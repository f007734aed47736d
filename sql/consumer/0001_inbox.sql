-- The consumer's side of outflow: what makes an event count exactly once.
--
-- Run it in the database that holds the projection, as the owner of that database or as a superuser:
-- the inbox and the projection must commit together. It may be run again at any time.

CREATE SCHEMA IF NOT EXISTS outflow;

-- What was applied; the same table as on the producer's side, which may be another database.
CREATE TABLE IF NOT EXISTS outflow.migration (
    side       text        NOT NULL,
    version    int         NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (side, version)
);

-- ---------------------------------------------------------------------------------------- inbox

CREATE TABLE IF NOT EXISTS outflow.inbox (
    consumer_id    text        NOT NULL,
    event_id       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    seq            bigint,
    event_type     text        NOT NULL,
    payload        jsonb,
    payload_raw    bytea,
    "position"     text,
    stream         text        NOT NULL,
    entry_id       text        NOT NULL,
    applied_at     timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT inbox_pkey PRIMARY KEY (consumer_id, event_id),
    CONSTRAINT inbox_one_form_of_payload CHECK (payload IS NULL OR payload_raw IS NULL)
);

COMMENT ON TABLE outflow.inbox IS
    'Every applied event, once per consumer. A row is written in the transaction that changes the projection: '
    'a row here means that the event has had its effect, no row means that it has had none.';
COMMENT ON COLUMN outflow.inbox.consumer_id IS
    'The projection (not the process) that applied the event: two workers of one consumer share it.';
COMMENT ON COLUMN outflow.inbox.event_id IS
    'The producer''s id of the fact: stable over every delivery, so it is the key of deduplication.';
COMMENT ON COLUMN outflow.inbox.payload IS
    'The payload that the id is bound to. Another delivery of the id is a duplicate if its payload is equal as jsonb '
    '(key order, white space, 1.0 and 1 do not count) and a conflict otherwise. NULL together with payload_raw: '
    'the event has no payload (SQL NULL), which differs from every payload.';
COMMENT ON COLUMN outflow.inbox.payload_raw IS
    'The payload''s bytes where jsonb cannot hold them (\u0000, a lone surrogate, binary): compared byte by byte.';
COMMENT ON COLUMN outflow.inbox."position" IS
    'Commit LSN and index in the source, "0/16B3748:3"; NULL when the entry did not come from the connector.';
COMMENT ON COLUMN outflow.inbox.entry_id IS
    'The delivery that was applied. It identifies a delivery, never the fact: do not deduplicate by it.';

-- ------------------------------------------------------------------------------------- conflict

CREATE TABLE IF NOT EXISTS outflow.conflict (
    conflict_id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_id         text        NOT NULL,
    event_id            text        NOT NULL,
    stream              text        NOT NULL,
    entry_id            text        NOT NULL,
    aggregate_type      text        NOT NULL,
    aggregate_id        text        NOT NULL,
    seq                 bigint,
    event_type          text        NOT NULL,
    payload             jsonb,
    payload_raw         bytea,
    headers             text,
    "position"          text,
    applied_stream      text        NOT NULL,
    applied_entry_id    text        NOT NULL,
    applied_payload     jsonb,
    applied_payload_raw bytea,
    applied_at          timestamptz NOT NULL,
    detected_at         timestamptz NOT NULL DEFAULT now(),
    resolved_at         timestamptz,
    resolution          text,
    -- a delivery that comes again (a crash between commit and XACK) is not another conflict
    CONSTRAINT conflict_once_per_entry UNIQUE (consumer_id, stream, entry_id)
);

CREATE INDEX IF NOT EXISTS conflict_open ON outflow.conflict (consumer_id, detected_at) WHERE resolved_at IS NULL;

COMMENT ON TABLE outflow.conflict IS
    'Deliveries of a known event id with another payload. They were not applied: a producer gave one id to two facts, '
    'or a source was restored to an older state, and a person must decide which one holds.';
COMMENT ON COLUMN outflow.conflict.payload IS 'The payload that was refused (payload_raw where jsonb cannot hold it).';
COMMENT ON COLUMN outflow.conflict.applied_payload IS
    'The payload that was applied, copied here so that both stay reachable when the inbox is cleaned up.';
COMMENT ON COLUMN outflow.conflict.resolved_at IS 'When a person settled it; open while NULL.';

-- ---------------------------------------------------------------------------------- dead letter

CREATE TABLE IF NOT EXISTS outflow.dead_letter (
    dead_letter_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_id    text        NOT NULL,
    stream         text        NOT NULL,
    entry_id       text        NOT NULL,
    event_id       text,
    aggregate_type text,
    aggregate_id   text,
    seq            bigint,
    event_type     text,
    payload        jsonb,
    payload_raw    bytea,
    headers        text,
    "position"     text,
    raw_fields     bytea[],
    reason         text        NOT NULL,
    sqlstate       text,
    attempts       integer     NOT NULL DEFAULT 0,
    dead_at        timestamptz NOT NULL DEFAULT now(),
    resolved_at    timestamptz,
    resolution     text,
    CONSTRAINT dead_letter_once_per_entry UNIQUE (consumer_id, stream, entry_id)
);

CREATE INDEX IF NOT EXISTS dead_letter_open ON outflow.dead_letter (consumer_id, dead_at) WHERE resolved_at IS NULL;

COMMENT ON TABLE outflow.dead_letter IS
    'Entries that were set aside so that the others could go on, with the original id, payload and reason. '
    'Nothing here has had an effect on the projection.';
COMMENT ON COLUMN outflow.dead_letter.event_id IS 'NULL when the entry is malformed: it names no event.';
COMMENT ON COLUMN outflow.dead_letter.raw_fields IS
    'A malformed entry byte for byte, as name, value, name, value, ... (nothing else can be trusted about it).';
COMMENT ON COLUMN outflow.dead_letter.attempts IS
    'How often it was tried; 0 for malformed entries. Lost connections, deadlocks and shutdowns do not count.';

-- ------------------------------------------------------------------------------------- position

CREATE TABLE IF NOT EXISTS outflow.position (
    consumer_id text        NOT NULL,
    stream      text        NOT NULL,
    entry_id    text        NOT NULL CHECK (entry_id  ~ '^[0-9]+-[0-9]+$'),
    resume_id   text        NOT NULL CHECK (resume_id ~ '^[0-9]+-[0-9]+$'),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT position_pkey PRIMARY KEY (consumer_id, stream)
) WITH (fillfactor = 50);

COMMENT ON TABLE outflow.position IS
    'How far a consumer has come in each stream, written in the transaction that applies the events. '
    'Redis keeps the group, and Redis can lose it (FLUSHALL, DEL, failover): this row cannot be lost without the projection.';
COMMENT ON COLUMN outflow.position.entry_id IS
    'The highest entry that was applied or set aside. With several workers, lower ones may still be in work.';
COMMENT ON COLUMN outflow.position.updated_at IS
    'When it last moved. Above created_at: a group that is missing then was lost, and is not just new.';
COMMENT ON COLUMN outflow.position.resume_id IS
    'Every entry up to this one was applied or set aside, whichever worker had it: a lost group is rebuilt here. '
    'Ids are compared as numbers: string_to_array(id, ''-'')::numeric[].';
