WITH judged AS (
    SELECT event.*, known.stream AS applied_stream, known.entry_id AS applied_entry_id,
           known.payload AS applied_payload, known.payload_raw AS applied_payload_raw, known.applied_at,
           known.payload IS NOT DISTINCT FROM event.payload::jsonb
               AND known.payload_raw IS NOT DISTINCT FROM event.payload_raw AS same
    FROM unnest($2::int8[], $3::text[], $4::text[], $5::text[], $6::int8[], $7::text[], $8::text[],
                $9::bytea[], $10::text[], $11::text[], $12::text[], $13::text[])
         AS event (ordinal, event_id, aggregate_type, aggregate_id, seq, event_type, payload,
                   payload_raw, headers, position, stream, entry_id)
    -- row by row: a plan that was made while the inbox was small would read all of it for a join
    CROSS JOIN LATERAL (
        SELECT * FROM outflow.inbox AS entered
        WHERE entered.consumer_id = $1::text AND entered.event_id = event.event_id LIMIT 1
    ) AS known
), stored AS (
    INSERT INTO outflow.conflict (consumer_id, event_id, stream, entry_id, aggregate_type, aggregate_id,
                                  seq, event_type, payload, payload_raw, headers, position,
                                  applied_stream, applied_entry_id, applied_payload,
                                  applied_payload_raw, applied_at)
    SELECT $1::text, event_id, stream, entry_id, aggregate_type, aggregate_id, seq, event_type,
           payload::jsonb, payload_raw, headers, position, applied_stream, applied_entry_id,
           applied_payload, applied_payload_raw, applied_at
    FROM judged WHERE NOT same
    ORDER BY ordinal
    ON CONFLICT (consumer_id, stream, entry_id) DO NOTHING
)
SELECT ordinal, same, applied_stream, applied_entry_id FROM judged
