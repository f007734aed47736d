-- Two ways to emit an event inside a business transaction. Both keep the order of commits, and both
-- vanish with a rollback, also of a savepoint.
--
--   SELECT outflow.emit('order', '42', 'OrderPlaced', '{"total": 1250}');
--   SELECT outflow.emit_message('order', '42', 'OrderPlaced', '{"total": 1250}');
--
-- emit leaves a row: events can be replayed from it, compared with it, and found by a snapshot.
-- emit_message leaves nothing but the log record: no table to clean up, no dead rows, but also no
-- replay once the log is gone, no uniqueness of the event id, and no snapshot.
-- Needs: CREATE on schema outflow.

CREATE OR REPLACE FUNCTION outflow.emit(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        jsonb,
    event_id       text   DEFAULT NULL,
    seq            bigint DEFAULT NULL,
    headers        jsonb  DEFAULT NULL
) RETURNS text
LANGUAGE sql VOLATILE
AS $$
    -- a value that may not be NULL is refused by the table, never replaced
    INSERT INTO outflow.outbox
        (event_id, aggregate_type, aggregate_id, seq, event_type, payload, headers)
    VALUES
        (COALESCE(emit.event_id, gen_random_uuid()::text), emit.aggregate_type, emit.aggregate_id,
         emit.seq, emit.event_type, emit.payload, emit.headers)
    RETURNING outbox.event_id
$$;

COMMENT ON FUNCTION outflow.emit(text, text, text, jsonb, text, bigint, jsonb) IS
    'writes an event to the outbox in the current transaction and returns its event id';

CREATE OR REPLACE FUNCTION outflow.emit_message(
    aggregate_type text,
    aggregate_id   text,
    event_type     text,
    payload        jsonb,
    event_id       text   DEFAULT NULL,
    seq            bigint DEFAULT NULL,
    headers        jsonb  DEFAULT NULL
) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    id text := COALESCE(emit_message.event_id, gen_random_uuid()::text);
BEGIN
    -- pg_logical_emit_message does nothing at all when its content is NULL: the event would be lost
    -- without an error, so a missing part is refused here as the table would refuse it
    IF emit_message.aggregate_type IS NULL OR emit_message.aggregate_id IS NULL
        OR emit_message.event_type IS NULL THEN
        RAISE EXCEPTION 'aggregate_type, aggregate_id and event_type of an event may not be NULL'
            USING ERRCODE = 'not_null_violation';
    END IF;
    IF emit_message.aggregate_type = '' OR id = '' THEN
        RAISE EXCEPTION 'aggregate_type and event_id of an event may not be empty'
            USING ERRCODE = 'check_violation';
    END IF;

    -- A flat JSON object, put together by hand so that payload and headers stand in it as they are
    -- printed, untouched by another JSON writer. A SQL NULL is left out: JSON null is a value.
    PERFORM pg_logical_emit_message(
        true,
        'outflow',
        '{"event_id":' || to_json(id)
        || ',"aggregate_type":' || to_json(emit_message.aggregate_type)
        || ',"aggregate_id":' || to_json(emit_message.aggregate_id)
        || ',"event_type":' || to_json(emit_message.event_type)
        || COALESCE(',"seq":' || emit_message.seq, '')
        || COALESCE(',"payload":' || emit_message.payload::text, '')
        || COALESCE(',"headers":' || emit_message.headers::text, '')
        || '}'
    );
    RETURN id;
END
$$;

COMMENT ON FUNCTION outflow.emit_message(text, text, text, jsonb, text, bigint, jsonb) IS
    'writes an event to the log in the current transaction, without a row, and returns its event id';
