WITH due AS (
    SELECT stream, entry_id, aggregate_type, aggregate_id, place, suspect, dead_letter_id, due_at
    FROM outflow.parked
    WHERE consumer_id = $1::text AND due_at <= clock_timestamp() AND stream = ANY ($2::text[])
    ORDER BY due_at LIMIT $3::int8
), queue AS (
    -- of two that are due in one aggregate, the first
    SELECT DISTINCT ON (aggregate_type, aggregate_id) * FROM due ORDER BY aggregate_type, aggregate_id, place
), page AS (
    SELECT event.*, queue.due_at AS queue_due_at, queue.place AS queue_place,
           sum(event.bytes) OVER (ORDER BY queue.due_at, queue.place, event.place) AS bytes_so_far
    FROM queue CROSS JOIN LATERAL (
        SELECT stream, entry_id, place, seq, fields, bytes, suspect, started, finished, dead_letter_id, cause, first_at
        FROM outflow.parked
        WHERE consumer_id = $1::text AND parked.aggregate_type = queue.aggregate_type
          AND parked.aggregate_id = queue.aggregate_id
          AND (queue.dead_letter_id IS NULL OR parked.dead_letter_id = queue.dead_letter_id)
        ORDER BY parked.place
        LIMIT CASE WHEN queue.suspect THEN 1 ELSE $4::int8 END
    ) AS event
)
-- an event that was missing comes behind those that wait for it, and goes first
SELECT stream, entry_id, fields, suspect, started, finished, dead_letter_id,
       cause = 'gap' AND first_at <= clock_timestamp() - make_interval(secs => $7::float8) AS overdue
FROM page
WHERE bytes_so_far - bytes <= $5::int8
ORDER BY queue_due_at, queue_place,
         CASE WHEN bool_or(cause = 'gap') OVER (PARTITION BY queue_due_at, queue_place) THEN seq END NULLS FIRST, place
LIMIT $6::int8
