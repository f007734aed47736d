WITH gone AS (
    DELETE FROM outflow.parked
    WHERE consumer_id = $1::text AND stream = $2::text AND entry_id = $3::text
    RETURNING *
)
INSERT INTO outflow.dead_letter AS known (consumer_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type,
                                 payload, payload_raw, headers, position, raw_fields, reason, sqlstate, attempts,
                                 crashes, holds, first_at, last_at)
SELECT consumer_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type,
       $4::text::jsonb, $5::bytea, $6::text, position, fields, coalesce($7::text, error, ''), sqlstate, started,
       started - finished, $8::bool, first_at, coalesce(last_at, now())
FROM gone
ON CONFLICT (consumer_id, stream, entry_id) DO UPDATE
SET reason = excluded.reason, sqlstate = excluded.sqlstate, attempts = known.attempts + excluded.attempts,
    crashes = known.crashes + excluded.crashes, last_at = excluded.last_at, holds = excluded.holds,
    first_at = coalesce(known.first_at, excluded.first_at), retry_requested_at = NULL,
    resolved_at = NULL, resolution = NULL, resolved_by = NULL
