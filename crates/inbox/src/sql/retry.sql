WITH letter AS (
    UPDATE outflow.dead_letter SET retry_requested_at = now(), retry_requested_by = $3::text
    WHERE consumer_id = $1::text AND dead_letter_id = ANY ($2::int8[])
      AND resolved_at IS NULL AND retry_requested_at IS NULL AND event_id IS NOT NULL
    RETURNING *
)
INSERT INTO outflow.parked (consumer_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                            position, fields, bytes, cause, suspect, due_at, dead_letter_id)
SELECT consumer_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type, position, raw_fields,
       (SELECT sum(octet_length(value)) FROM unnest(raw_fields) AS value), 'retry', crashes > 0, clock_timestamp(),
       dead_letter_id
FROM letter
ON CONFLICT (consumer_id, stream, entry_id) DO UPDATE
SET cause = excluded.cause, due_at = excluded.due_at, dead_letter_id = excluded.dead_letter_id
RETURNING dead_letter_id
