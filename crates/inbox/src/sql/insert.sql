WITH inserted AS (
    INSERT INTO outflow.inbox (consumer_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                               payload, payload_raw, position, stream, entry_id)
    SELECT $1::text, event_id, aggregate_type, aggregate_id, seq, event_type,
           payload::jsonb, payload_raw, position, stream, entry_id
    FROM unnest($2::text[], $3::text[], $4::text[], $5::int8[], $6::text[], $7::text[], $8::bytea[],
                $9::text[], $10::text[], $11::text[])
         AS event (event_id, aggregate_type, aggregate_id, seq, event_type, payload, payload_raw,
                   position, stream, entry_id)
    -- in the inbox's transaction only: this statement is sent before that is known to have begun
    WHERE EXISTS (SELECT FROM pg_catalog.pg_cursors WHERE name = 'outflow_commit')
    ON CONFLICT (consumer_id, event_id) DO NOTHING
    RETURNING event_id
)
SELECT count(*) AS fresh,
       CASE WHEN count(*) < cardinality($2::text[]) THEN array_agg(event_id) END AS fresh_ids,
       pg_current_xact_id()::text AS transaction_id
FROM inserted
