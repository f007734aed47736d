-- A worker that is stopped in the middle of a transaction keeps the locks of what it has written: whoever takes its
-- streams would wait for them as long as the transaction may last. Its own connection tells sessions apart by name.
-- Streams may be taken as in acquire.sql: when the lease is over, or the worker's other session is gone.
SELECT worker.worker, pg_catalog.pg_terminate_backend(session.pid) AS ended
FROM outflow.worker
JOIN pg_catalog.pg_stat_activity AS session ON session.application_name = 'outflow ' || worker.instance
WHERE worker.consumer_id = $1::text AND worker.worker <> $2::text
  AND session.datname = current_database() AND session.usename = session_user AND session.xact_start IS NOT NULL
  AND EXISTS (SELECT FROM outflow.position
              WHERE position.consumer_id = $1::text AND position.stream = ANY ($3::text[])
                AND position.holder = worker.worker
                AND (position.held_until < now()
                     OR NOT EXISTS (SELECT FROM pg_catalog.pg_stat_activity AS keeper
                                    WHERE keeper.pid = worker.backend_pid
                                      AND (keeper.backend_start IS NULL
                                           OR keeper.backend_start = worker.backend_started))))
