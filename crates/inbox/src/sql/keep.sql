UPDATE outflow.conflict
SET resolved_at = now(), resolution = 'keep', resolved_by = $3::text, reason = $4::text,
    requested_at = NULL, requested_by = NULL, failure = NULL
WHERE conflict_id IN (
    -- in one order, so that two people who settle the same ones do not wait for each other in a circle
    SELECT conflict_id FROM outflow.conflict
    WHERE consumer_id = $1::text AND conflict_id = ANY ($2::bigint[]) AND resolved_at IS NULL
    ORDER BY conflict_id
    FOR UPDATE
)
RETURNING conflict_id
