SELECT count(*) FROM (
    SELECT FROM outflow.parked
    JOIN unnest($2::text[], $3::text[]) AS event (stream, entry_id) USING (stream, entry_id)
    WHERE consumer_id = $1::text
    FOR UPDATE OF parked SKIP LOCKED
) AS locked
