WITH alive AS (
    UPDATE outflow.worker SET seen_at = now()
    WHERE consumer_id = $1::text AND worker = $2::text AND instance = $3::text
    RETURNING worker
), renewed AS (
    UPDATE outflow.position AS known SET held_until = now() + make_interval(secs => $4::float8)
    FROM unnest($5::text[], $6::int8[]) AS held (stream, token), alive
    WHERE known.consumer_id = $1::text AND known.stream = held.stream AND known.token = held.token
      AND known.holder = alive.worker
    RETURNING known.stream
)
SELECT EXISTS (SELECT FROM alive) AS alive, (SELECT array_agg(stream) FROM renewed) AS renewed
