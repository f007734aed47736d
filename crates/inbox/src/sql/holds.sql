SELECT DISTINCT ON (stream) stream, entry_id, what
FROM (
    SELECT stream, entry_id, 'dead letter ' || dead_letter_id || ' is open' AS what
    FROM outflow.dead_letter WHERE consumer_id = $1::text AND resolved_at IS NULL
    UNION ALL
    SELECT stream, entry_id, 'event ' || event_id || ' is held back'
    FROM outflow.parked WHERE consumer_id = $1
) AS held
ORDER BY stream, string_to_array(entry_id, '-')::numeric[]
