UPDATE outflow.conflict
SET attempted_at = now(), failure = $2::text, requested_at = NULL, requested_by = NULL
WHERE conflict_id = $1::bigint AND resolved_at IS NULL
