-- The same for one process, by its number: the one that had this worker's name before (nothing it has begun can commit any
-- more, because its streams are taken under its own name, with a newer token), or this one.
SELECT pg_catalog.pg_terminate_backend(session.pid) AS ended
FROM pg_catalog.pg_stat_activity AS session
WHERE session.application_name = 'outflow ' || $1::text
  AND session.datname = current_database() AND session.usename = session_user AND session.xact_start IS NOT NULL
