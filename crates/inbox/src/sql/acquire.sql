WITH free AS (
    SELECT stream FROM outflow.position AS known
    WHERE consumer_id = $1::text AND stream = ANY ($4::text[])
      AND (holder IS NULL OR holder = $2::text OR held_until < now()
           OR NOT EXISTS (SELECT FROM outflow.worker
                          JOIN pg_catalog.pg_stat_activity AS session
                            ON session.pid = worker.backend_pid
                           AND (session.backend_start IS NULL OR session.backend_start = worker.backend_started)
                          WHERE worker.consumer_id = $1::text AND worker.worker = known.holder))
    ORDER BY stream LIMIT $5::int8
    FOR UPDATE SKIP LOCKED
)
UPDATE outflow.position AS taken
SET holder = $2::text, token = token + 1, held_until = now() + make_interval(secs => $3::float8)
FROM free WHERE taken.consumer_id = $1::text AND taken.stream = free.stream
RETURNING taken.stream, taken.token
