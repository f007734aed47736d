WITH entry AS (
    SELECT row, array_agg(value ORDER BY n) AS fields, sum(octet_length(value)) AS bytes
    FROM unnest($10::int8[], $11::bytea[]) WITH ORDINALITY AS field (row, value, n)
    GROUP BY row
)
INSERT INTO outflow.parked (consumer_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                            position, fields, bytes, cause, suspect, due_at)
SELECT $1::text, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type, position, fields, bytes,
       $12::text, $13::bool, CASE WHEN due_in >= 0 THEN clock_timestamp() + make_interval(secs => due_in) END
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::int8[], $8::text[], $9::text[],
            $14::float8[]) WITH ORDINALITY
     AS event (stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type, position, due_in, row)
JOIN entry USING (row)
-- an open dead letter is kept already: its entry came again
WHERE NOT EXISTS (SELECT FROM outflow.dead_letter AS letter
                  WHERE letter.consumer_id = $1::text AND letter.stream = event.stream
                    AND letter.entry_id = event.entry_id AND letter.resolved_at IS NULL)
ON CONFLICT (consumer_id, stream, entry_id) DO NOTHING
