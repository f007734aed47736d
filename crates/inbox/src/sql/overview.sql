SELECT (SELECT count(*) FROM outflow.parked WHERE consumer_id = $1::text) AS parked,
       (SELECT count(*) FROM outflow.dead_letter WHERE consumer_id = $1::text AND resolved_at IS NULL) AS dead_letters,
       first.event_id, first.aggregate_type, first.aggregate_id, first.cause, first.started, first.error
FROM (SELECT) AS always
LEFT JOIN LATERAL (
    SELECT * FROM outflow.parked WHERE consumer_id = $1::text AND due_at IS NOT NULL ORDER BY parked_at LIMIT 1
) AS first ON true
