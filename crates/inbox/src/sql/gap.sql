UPDATE outflow.parked
SET cause = 'gap', suspect = false,
    first_at = CASE WHEN cause = 'gap' THEN coalesce(first_at, clock_timestamp()) ELSE clock_timestamp() END,
    due_at = CASE WHEN cause = 'gap' THEN coalesce(first_at, clock_timestamp()) ELSE clock_timestamp() END
             + make_interval(secs => $4::float8)
FROM unnest($2::text[], $3::text[]) AS event (stream, entry_id)
WHERE consumer_id = $1::text AND parked.stream = event.stream AND parked.entry_id = event.entry_id
