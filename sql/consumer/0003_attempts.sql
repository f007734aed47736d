-- What keeps the others going when an event fails: attempts, events that wait, dead letters that can be tried again,
-- and which worker has which stream.

-- ---------------------------------------------------------------------------------------- parked

CREATE TABLE IF NOT EXISTS outflow.parked (
    consumer_id    text        NOT NULL,
    stream         text        NOT NULL,
    entry_id       text        NOT NULL,
    place          numeric     NOT NULL GENERATED ALWAYS AS
        (split_part(entry_id, '-', 1)::numeric * 18446744073709551616 + split_part(entry_id, '-', 2)::numeric) STORED,
    event_id       text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    seq            bigint,
    event_type     text        NOT NULL,
    "position"     text,
    fields         bytea[]     NOT NULL,
    bytes          bigint      NOT NULL,
    cause          text        NOT NULL,
    suspect        boolean     NOT NULL DEFAULT false,
    started        integer     NOT NULL DEFAULT 0,
    finished       integer     NOT NULL DEFAULT 0,
    first_at       timestamptz,
    last_at        timestamptz,
    due_at         timestamptz,
    error          text,
    sqlstate       text,
    dead_letter_id bigint,
    parked_at      timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT parked_pkey PRIMARY KEY (consumer_id, stream, entry_id)
);

CREATE INDEX IF NOT EXISTS parked_queue ON outflow.parked (consumer_id, aggregate_type, aggregate_id, place);
CREATE INDEX IF NOT EXISTS parked_due ON outflow.parked (consumer_id, due_at) WHERE due_at IS NOT NULL;

COMMENT ON TABLE outflow.parked IS
    'Events that are held back: the first of an aggregate failed and will be tried again, those behind it wait in order. '
    'They are acknowledged in Redis and have had no effect: this row is all there is of them. Do not delete it by hand.';
COMMENT ON COLUMN outflow.parked.place IS 'The entry id as one number: the order within an aggregate.';
COMMENT ON COLUMN outflow.parked.fields IS 'The entry as it was delivered: name, value, name, value, ...';
COMMENT ON COLUMN outflow.parked.cause IS
    'failed: tried, and will be again; behind: waits for an earlier event of its aggregate; suspect: may have ended its '
    'worker and is tried alone; gap: an earlier seq of its aggregate is missing; retry: a dead letter on its way back.';
COMMENT ON COLUMN outflow.parked.started IS
    'Attempts that began. For a suspect this is committed before the attempt, in which it is alone: a worker that it '
    'ends leaves started above finished. Lost connections, deadlocks and shutdowns do not count.';
COMMENT ON COLUMN outflow.parked.finished IS 'Attempts that came back with an error.';
COMMENT ON COLUMN outflow.parked.due_at IS 'When it is tried; NULL while an earlier event of its aggregate is in front.';

-- The inbox row of an event that turned out to fail is taken back within its own transaction: nobody else has seen it.
-- A function, because whoever applies events may not delete from the inbox.
CREATE OR REPLACE FUNCTION outflow.withdraw(consumer text, event_ids text[]) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (
        DELETE FROM outflow.inbox
        WHERE consumer_id = consumer AND event_id = ANY (event_ids) AND xmin = pg_current_xact_id()::xid
        RETURNING 1
    )
    SELECT count(*) FROM gone
$$;
REVOKE ALL ON FUNCTION outflow.withdraw(text, text[]) FROM PUBLIC;
COMMENT ON FUNCTION outflow.withdraw(text, text[]) IS
    'Takes back inbox rows that the current transaction has inserted, and no others.';

-- ----------------------------------------------------------------------------------- dead letters

ALTER TABLE outflow.dead_letter
    ADD COLUMN IF NOT EXISTS holds              boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS crashes            integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS first_at           timestamptz,
    ADD COLUMN IF NOT EXISTS last_at            timestamptz,
    ADD COLUMN IF NOT EXISTS retry_requested_at timestamptz,
    ADD COLUMN IF NOT EXISTS retry_requested_by text,
    ADD COLUMN IF NOT EXISTS resolved_by        text,
    ADD COLUMN IF NOT EXISTS resolution_note    text;

CREATE INDEX IF NOT EXISTS dead_letter_holds ON outflow.dead_letter (consumer_id, aggregate_type, aggregate_id)
    WHERE resolved_at IS NULL AND holds;

COMMENT ON COLUMN outflow.dead_letter.raw_fields IS
    'The entry as it was delivered: name, value, name, value, ... A malformed one is not taken apart any further.';
COMMENT ON COLUMN outflow.dead_letter.holds IS
    'Later events of its aggregate wait in outflow.parked until it is resolved (on_failure = "park_aggregate").';
COMMENT ON COLUMN outflow.dead_letter.crashes IS 'Attempts, of all, in which its worker ended without an answer.';
COMMENT ON COLUMN outflow.dead_letter.retry_requested_at IS
    'A person asked for another attempt, which a worker of the consumer will make; NULL again when it has failed.';
COMMENT ON COLUMN outflow.dead_letter.resolution IS
    'applied, duplicate (the id had been applied before, with this payload), conflict (with another one), discarded.';

-- ---------------------------------------------------------------------------------- many workers

ALTER TABLE outflow.position
    ADD COLUMN IF NOT EXISTS token      bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS holder     text,
    ADD COLUMN IF NOT EXISTS held_until timestamptz;

COMMENT ON COLUMN outflow.position.token IS
    'Rises whenever another worker takes the stream. A transaction that applies events of the stream names the token under '
    'which it read them, and is refused when that is not the newest one.';
COMMENT ON COLUMN outflow.position.holder IS 'The worker that reads the stream; NULL when nobody does.';
COMMENT ON COLUMN outflow.position.held_until IS 'Another worker may take the stream after this, by the database''s clock.';

CREATE TABLE IF NOT EXISTS outflow.worker (
    consumer_id     text        NOT NULL,
    worker          text        NOT NULL,
    instance        text        NOT NULL,
    started_at      timestamptz NOT NULL DEFAULT now(),
    seen_at         timestamptz NOT NULL DEFAULT now(),
    backend_pid     integer     NOT NULL,
    backend_started timestamptz,
    CONSTRAINT worker_pkey PRIMARY KEY (consumer_id, worker)
) WITH (fillfactor = 50);

COMMENT ON TABLE outflow.worker IS
    'The processes of each consumer. A name belongs to one process at a time; the streams are shared out among those '
    'that have been seen lately.';
COMMENT ON COLUMN outflow.worker.instance IS 'Made anew by every process: tells two processes of one name apart.';
COMMENT ON COLUMN outflow.worker.backend_pid IS
    'The session that says the worker is alive. When it is gone, so is the worker, and nobody waits for its time to run out.';

-- ------------------------------------------------------------------------------------------ gaps

CREATE TABLE IF NOT EXISTS outflow.sequence (
    consumer_id    text        NOT NULL,
    aggregate_type text        NOT NULL,
    aggregate_id   text        NOT NULL,
    last_seq       bigint      NOT NULL,
    CONSTRAINT sequence_pkey PRIMARY KEY (consumer_id, aggregate_type, aggregate_id)
) WITH (fillfactor = 70);

COMMENT ON TABLE outflow.sequence IS
    'The highest seq that was applied of each aggregate, while gaps are looked for (consumer.on_gap = "warn" or "wait"). '
    'Rows may be deleted: the next event of such an aggregate is then taken as its first.';

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        RETURN;
    END IF;
    GRANT SELECT, INSERT, UPDATE, DELETE ON outflow.parked TO outflow_consumer;
    GRANT SELECT, INSERT, UPDATE, DELETE ON outflow.worker TO outflow_consumer;
    GRANT SELECT, INSERT, UPDATE ON outflow.sequence TO outflow_consumer;
    GRANT EXECUTE ON FUNCTION outflow.withdraw(text, text[]) TO outflow_consumer;
END
$$;
