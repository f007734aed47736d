-- What it takes to settle conflicts by command: who decided what, when and why.
--
-- Run it as the owner of the tables, as the files before it. It may be run again at any time.

ALTER TABLE outflow.conflict
    ADD COLUMN IF NOT EXISTS resolved_by   text,
    ADD COLUMN IF NOT EXISTS reason        text,
    ADD COLUMN IF NOT EXISTS requested_at  timestamptz,
    ADD COLUMN IF NOT EXISTS requested_by  text,
    ADD COLUMN IF NOT EXISTS attempted_at  timestamptz,
    ADD COLUMN IF NOT EXISTS failure       text,
    ADD COLUMN IF NOT EXISTS replaced      jsonb;

COMMENT ON COLUMN outflow.conflict.resolution IS
    'What was decided: keep (the event that was applied holds) or replace (the refused one was applied instead).';
COMMENT ON COLUMN outflow.conflict.resolved_by IS 'Who decided it.';
COMMENT ON COLUMN outflow.conflict.reason IS 'Why, in the words of the one who decided.';
COMMENT ON COLUMN outflow.conflict.requested_at IS
    'When a replacement was asked for: a worker of the consumer carries it out. Open until resolved_at is set.';
COMMENT ON COLUMN outflow.conflict.attempted_at IS 'When a worker last tried a replacement that was asked for.';
COMMENT ON COLUMN outflow.conflict.failure IS
    'Why the last try failed. Nothing was changed by it.';
COMMENT ON COLUMN outflow.conflict.replaced IS
    'The inbox row that a replacement took the place of, whole: the original stays reachable.';

-- Workers look for these between two batches.
CREATE INDEX IF NOT EXISTS conflict_requested ON outflow.conflict (consumer_id, requested_at)
    WHERE requested_at IS NOT NULL AND resolved_at IS NULL;

-- The one way in which an inbox row changes: the event that a conflict refused takes its place, and the row
-- as it was is kept with the conflict, in one statement. Workers may call it and may not UPDATE the inbox.
-- Returns whether it did: not if the conflict is settled, or another worker has it.
CREATE OR REPLACE FUNCTION outflow.replace_applied(conflict_id bigint, resolved_by text, reason text)
RETURNS boolean
LANGUAGE sql
SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
    WITH refused AS (
        UPDATE outflow.conflict AS c
        SET resolved_at = now(), resolution = 'replace', resolved_by = $2, reason = $3, failure = NULL,
            replaced = to_jsonb(i)
        FROM outflow.inbox AS i
        WHERE c.conflict_id = $1 AND c.resolved_at IS NULL
          AND i.consumer_id = c.consumer_id AND i.event_id = c.event_id
        RETURNING c.*
    ), bound AS (
        UPDATE outflow.inbox AS i
        SET aggregate_type = r.aggregate_type, aggregate_id = r.aggregate_id, seq = r.seq,
            event_type = r.event_type, payload = r.payload, payload_raw = r.payload_raw,
            "position" = r."position", stream = r.stream, entry_id = r.entry_id, applied_at = now()
        FROM refused AS r
        WHERE i.consumer_id = r.consumer_id AND i.event_id = r.event_id
        RETURNING i.event_id
    )
    SELECT EXISTS (SELECT FROM bound)
$$;

COMMENT ON FUNCTION outflow.replace_applied(bigint, text, text) IS
    'Binds the event id of a conflict to the payload that was refused, and keeps the row that was there.';

REVOKE ALL ON FUNCTION outflow.replace_applied(bigint, text, text) FROM PUBLIC;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        RETURN;
    END IF;
    -- what the two sides said is never changed, only what was decided about it
    GRANT UPDATE (resolved_at, resolution, resolved_by, reason, requested_at, requested_by, attempted_at, failure)
        ON outflow.conflict TO outflow_consumer;
    GRANT EXECUTE ON FUNCTION outflow.replace_applied(bigint, text, text) TO outflow_consumer;
END
$$;
