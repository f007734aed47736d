UPDATE outflow.parked AS waits SET due_at = clock_timestamp()
WHERE waits.consumer_id = $1::text AND waits.due_at IS NULL
  AND NOT EXISTS (SELECT FROM outflow.parked AS earlier
                  WHERE earlier.consumer_id = $1::text AND earlier.aggregate_type = waits.aggregate_type
                    AND earlier.aggregate_id = waits.aggregate_id AND earlier.place < waits.place)
  AND NOT EXISTS (SELECT FROM outflow.dead_letter AS letter
                  WHERE letter.consumer_id = $1::text AND letter.resolved_at IS NULL AND letter.holds
                    AND letter.aggregate_type = waits.aggregate_type AND letter.aggregate_id = waits.aggregate_id)
