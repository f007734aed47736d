INSERT INTO outflow.position (consumer_id, stream, entry_id, resume_id)
SELECT $1::text, stream, entry_id, entry_id FROM unnest($2::text[], $3::text[]) AS start (stream, entry_id)
ORDER BY stream
ON CONFLICT (consumer_id, stream) DO NOTHING
RETURNING stream
