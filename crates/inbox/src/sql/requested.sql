SELECT conflict_id, event_id, aggregate_type, aggregate_id, seq, event_type, payload::text AS payload, payload_raw,
       headers, "position", stream, entry_id,
       coalesce(requested_by, '') AS requested_by, coalesce(reason, '') AS reason,
       pg_current_xact_id()::text AS transaction_id
FROM outflow.conflict
WHERE consumer_id = $1::text AND requested_at IS NOT NULL AND resolved_at IS NULL AND stream = ANY ($2::text[])
ORDER BY requested_at, conflict_id
LIMIT 1
FOR UPDATE SKIP LOCKED
