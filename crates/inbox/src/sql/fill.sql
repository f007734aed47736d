UPDATE outflow.parked AS next SET due_at = clock_timestamp()
FROM (
    SELECT DISTINCT aggregate_type, aggregate_id
    FROM unnest($2::text[], $3::text[]) AS event (aggregate_type, aggregate_id)
) AS queue
JOIN outflow.sequence AS known USING (aggregate_type, aggregate_id)
WHERE known.consumer_id = $1::text AND next.consumer_id = $1::text
  AND next.aggregate_type = queue.aggregate_type AND next.aggregate_id = queue.aggregate_id
  AND next.seq <= known.last_seq + 1 AND (next.due_at IS NULL OR next.cause = 'gap')
  AND EXISTS (SELECT FROM outflow.parked AS waits
              WHERE waits.consumer_id = $1::text AND waits.aggregate_type = queue.aggregate_type
                AND waits.aggregate_id = queue.aggregate_id AND waits.cause = 'gap')
  AND NOT EXISTS (SELECT FROM outflow.dead_letter AS letter
                  WHERE letter.consumer_id = $1::text AND letter.resolved_at IS NULL AND letter.holds
                    AND letter.aggregate_type = queue.aggregate_type AND letter.aggregate_id = queue.aggregate_id)
