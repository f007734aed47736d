SELECT conflict_id, event_id, aggregate_type, aggregate_id, seq, event_type, payload::text AS payload, payload_raw,
       headers, "position", stream, entry_id, applied_payload::text AS applied_payload, applied_payload_raw,
       coalesce(requested_by, '') AS requested_by, coalesce(reason, '') AS reason
FROM outflow.conflict
WHERE consumer_id = $1::text AND requested_at IS NOT NULL AND resolved_at IS NULL
ORDER BY requested_at
LIMIT 1
FOR UPDATE SKIP LOCKED
