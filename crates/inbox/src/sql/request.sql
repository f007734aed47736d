UPDATE outflow.conflict
SET requested_at = now(), requested_by = $3::text, reason = $4::text, attempted_at = NULL, failure = NULL
WHERE conflict_id IN (
    SELECT conflict_id FROM outflow.conflict
    WHERE consumer_id = $1::text AND conflict_id = ANY ($2::bigint[]) AND resolved_at IS NULL
    ORDER BY conflict_id
    FOR UPDATE
)
RETURNING conflict_id
