WITH batch AS (
    SELECT DISTINCT aggregate_type, aggregate_id
    FROM unnest($2::text[], $3::text[]) AS event (aggregate_type, aggregate_id)
), dead AS (
    -- a resolution that is under way is waited for: what it lets go must not find one more behind it
    SELECT letter.aggregate_type, letter.aggregate_id
    FROM outflow.dead_letter AS letter JOIN batch USING (aggregate_type, aggregate_id)
    WHERE letter.consumer_id = $1::text AND letter.resolved_at IS NULL AND letter.holds
    FOR SHARE OF letter
)
SELECT aggregate_type, aggregate_id FROM dead
UNION
SELECT aggregate_type, aggregate_id FROM batch
WHERE EXISTS (SELECT FROM outflow.parked
              WHERE consumer_id = $1::text AND parked.aggregate_type = batch.aggregate_type
                AND parked.aggregate_id = batch.aggregate_id)
