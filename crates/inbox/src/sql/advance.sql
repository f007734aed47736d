UPDATE outflow.parked AS next SET due_at = clock_timestamp()
FROM (
    SELECT DISTINCT aggregate_type, aggregate_id
    FROM unnest($2::text[], $3::text[]) AS event (aggregate_type, aggregate_id)
) AS queue
CROSS JOIN LATERAL (
    SELECT stream, entry_id, due_at FROM outflow.parked
    WHERE consumer_id = $1::text AND parked.aggregate_type = queue.aggregate_type
      AND parked.aggregate_id = queue.aggregate_id
    ORDER BY place LIMIT 1
) AS head
WHERE next.consumer_id = $1::text AND next.stream = head.stream AND next.entry_id = head.entry_id AND head.due_at IS NULL
  AND NOT EXISTS (SELECT FROM outflow.dead_letter AS letter
                  WHERE letter.consumer_id = $1::text AND letter.resolved_at IS NULL AND letter.holds
                    AND letter.aggregate_type = queue.aggregate_type AND letter.aggregate_id = queue.aggregate_id)
