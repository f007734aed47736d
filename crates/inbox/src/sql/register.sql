-- Returns the process that had the name before, by the snapshot of the statement: its row as it was.
INSERT INTO outflow.worker AS known (consumer_id, worker, instance, backend_pid, backend_started)
SELECT $1::text, $2::text, $3::text, pg_backend_pid(),
       (SELECT backend_start FROM pg_catalog.pg_stat_activity WHERE pid = pg_backend_pid())
ON CONFLICT (consumer_id, worker) DO UPDATE
SET instance = excluded.instance, started_at = now(), seen_at = now(), backend_pid = excluded.backend_pid,
    backend_started = excluded.backend_started
WHERE known.instance = excluded.instance
   OR known.seen_at < now() - make_interval(secs => $4::float8)
   OR NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS session
                  WHERE session.pid = known.backend_pid
                    AND (session.backend_start IS NULL OR session.backend_start = known.backend_started))
RETURNING (SELECT instance FROM outflow.worker WHERE consumer_id = $1::text AND worker = $2::text) AS before
