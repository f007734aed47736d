INSERT INTO outflow.sequence AS known (consumer_id, aggregate_type, aggregate_id, last_seq)
SELECT $1::text, aggregate_type, aggregate_id, seq
FROM unnest($2::text[], $3::text[], $4::int8[]) AS event (aggregate_type, aggregate_id, seq)
-- the handler may have ended the transaction
WHERE $5::text = pg_current_xact_id()::text
ORDER BY aggregate_type, aggregate_id
ON CONFLICT (consumer_id, aggregate_type, aggregate_id) DO UPDATE
SET last_seq = excluded.last_seq WHERE excluded.last_seq > known.last_seq
