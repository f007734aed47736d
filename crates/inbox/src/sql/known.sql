SELECT stream, resume_id, updated_at > created_at AS moved
FROM outflow.position WHERE consumer_id = $1::text
