SELECT worker, (SELECT count(*) FROM outflow.position
                WHERE position.consumer_id = $1::text AND holder = worker.worker AND held_until >= now()) AS held
FROM outflow.worker
WHERE consumer_id = $1::text AND seen_at >= now() - make_interval(secs => $2::float8)
  AND EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS session
              WHERE session.pid = worker.backend_pid
                AND (session.backend_start IS NULL OR session.backend_start = worker.backend_started))
