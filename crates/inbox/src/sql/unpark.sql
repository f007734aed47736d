WITH gone AS (
    DELETE FROM outflow.parked USING unnest($2::text[], $3::text[], $4::text[]) AS done (stream, entry_id, resolution)
    WHERE parked.consumer_id = $1::text AND parked.stream = done.stream AND parked.entry_id = done.entry_id
    RETURNING dead_letter_id, done.resolution
)
UPDATE outflow.dead_letter AS letter
SET resolved_at = now(), resolution = gone.resolution, resolved_by = letter.retry_requested_by
FROM gone WHERE letter.dead_letter_id = gone.dead_letter_id
