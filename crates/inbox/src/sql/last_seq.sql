SELECT aggregate_type, aggregate_id, last_seq
FROM unnest($2::text[], $3::text[]) AS event (aggregate_type, aggregate_id)
JOIN outflow.sequence USING (aggregate_type, aggregate_id)
WHERE consumer_id = $1::text
