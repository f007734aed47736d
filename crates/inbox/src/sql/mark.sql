UPDATE outflow.parked
SET started = started + $4::int4, first_at = coalesce(first_at, clock_timestamp()), last_at = clock_timestamp()
WHERE consumer_id = $1::text AND stream = $2::text AND entry_id = $3::text
