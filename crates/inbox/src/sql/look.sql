SELECT EXISTS (SELECT FROM outflow.parked WHERE consumer_id = $1::text)
       OR EXISTS (SELECT FROM outflow.dead_letter WHERE consumer_id = $1::text AND resolved_at IS NULL AND holds) AS held,
       (SELECT extract(epoch FROM min(due_at) - clock_timestamp())::float8 FROM outflow.parked
        WHERE consumer_id = $1::text AND due_at IS NOT NULL AND stream = ANY ($2::text[])) AS due_in
