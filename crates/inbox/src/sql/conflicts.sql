SELECT conflict_id, event_id, aggregate_type, aggregate_id, seq, event_type, stream, entry_id, "position",
       CASE WHEN $9::bool THEN headers END AS headers,
       CASE WHEN $9 THEN payload::text END AS payload,
       CASE WHEN $9 THEN payload_raw END AS payload_raw,
       applied_stream, applied_entry_id, applied_at,
       CASE WHEN $9 THEN applied_payload::text END AS applied_payload,
       CASE WHEN $9 THEN applied_payload_raw END AS applied_payload_raw,
       detected_at, requested_at, requested_by, failure, resolved_at, resolution, resolved_by, reason
FROM outflow.conflict
WHERE consumer_id = $1::text
  AND ($2::bigint[] IS NULL OR conflict_id = ANY ($2))
  AND ($3::text[] IS NULL OR event_id = ANY ($3))
  AND ($4::text IS NULL OR aggregate_type = $4)
  AND ($5::text IS NULL OR aggregate_id = $5)
  AND ($6::timestamptz IS NULL OR detected_at >= $6)
  AND ($7::timestamptz IS NULL OR detected_at < $7)
  AND CASE $8::text WHEN 'open' THEN resolved_at IS NULL
                    WHEN 'resolved' THEN resolved_at IS NOT NULL
                    ELSE true END
ORDER BY conflict_id
LIMIT $10::bigint
