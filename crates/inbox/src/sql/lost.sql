INSERT INTO outflow.lost_entries (consumer_id, stream, above_id, up_to_id, entries, was_pending)
SELECT $1::text, $2::text, above_id, up_to_id, entries, $6::bool
FROM unnest($3::text[], $4::text[], $5::int8[]) AS lost (above_id, up_to_id, entries)
ORDER BY up_to_id
ON CONFLICT (consumer_id, stream, up_to_id) DO NOTHING
RETURNING up_to_id
