INSERT INTO outflow.dead_letter (consumer_id, stream, entry_id, raw_fields, reason)
VALUES ($1::text, $2::text, $3::text, $4::bytea[], $5::text)
ON CONFLICT (consumer_id, stream, entry_id) DO NOTHING
