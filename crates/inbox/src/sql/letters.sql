SELECT dead_letter_id, stream, entry_id, event_id, aggregate_type, aggregate_id, seq, event_type, position,
       CASE WHEN $11::bool THEN headers END AS headers, CASE WHEN $11 THEN raw_fields END AS raw_fields, reason, sqlstate, attempts, crashes, holds, resolution, resolved_by, resolution_note,
       retry_requested_by,
       to_char(first_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS first_at,
       to_char(last_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS last_at,
       to_char(dead_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS dead_at,
       to_char(resolved_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS resolved_at,
       to_char(retry_requested_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS retry_requested_at,
       (SELECT count(*) FROM outflow.parked
        WHERE letter.holds AND parked.consumer_id = letter.consumer_id AND parked.aggregate_type = letter.aggregate_type
          AND parked.aggregate_id = letter.aggregate_id AND parked.dead_letter_id IS NULL) AS behind
FROM outflow.dead_letter AS letter
WHERE consumer_id = $1::text
  AND (cardinality($2::int8[]) + cardinality($3::text[]) = 0 OR dead_letter_id = ANY ($2) OR event_id = ANY ($3))
  AND ($4::text IS NULL OR event_type = $4)
  AND ($5::text IS NULL OR aggregate_type = $5)
  AND ($6::text IS NULL OR aggregate_id = $6)
  AND ($7::text IS NULL OR strpos(lower(reason), lower($7)) > 0 OR sqlstate = $7)
  AND ($8::text IS NULL OR dead_at >= $8::text::timestamptz)
  AND ($9::text IS NULL OR dead_at < $9::text::timestamptz)
  AND ($10::bool OR resolved_at IS NULL)
ORDER BY dead_letter_id
LIMIT $12::int8
