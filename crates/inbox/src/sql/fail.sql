UPDATE outflow.parked
SET cause = 'failed', suspect = false, error = failed.error, sqlstate = failed.sqlstate,
    started = started + CASE WHEN failed.marked THEN 0 ELSE 1 END, finished = finished + 1,
    first_at = coalesce(first_at, clock_timestamp()), last_at = clock_timestamp(),
    due_at = clock_timestamp() + make_interval(secs =>
        least($7::float8 * power(2, least(finished, 30)), $8::float8) * (0.5 + random() / 2))
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::bool[])
     AS failed (stream, entry_id, error, sqlstate, marked)
WHERE parked.consumer_id = $1::text AND parked.stream = failed.stream AND parked.entry_id = failed.entry_id
RETURNING parked.stream, parked.entry_id, started, dead_letter_id, extract(epoch FROM due_at - clock_timestamp())::float8 AS due_in
