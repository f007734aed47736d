INSERT INTO outflow.position AS known (consumer_id, stream, entry_id, resume_id, token)
SELECT $1::text, stream, entry_id, resume_id, token
FROM unnest($2::text[], $3::text[], $4::text[], $6::int8[]) AS reached (stream, entry_id, resume_id, token)
WHERE $5::text IS NULL OR $5 = pg_current_xact_id()::text
ORDER BY stream
ON CONFLICT (consumer_id, stream) DO UPDATE
SET entry_id = CASE WHEN string_to_array(excluded.entry_id, '-')::numeric[]
                         > string_to_array(known.entry_id, '-')::numeric[]
                    THEN excluded.entry_id ELSE known.entry_id END,
    resume_id = CASE WHEN string_to_array(excluded.resume_id, '-')::numeric[]
                          > string_to_array(known.resume_id, '-')::numeric[]
                     THEN excluded.resume_id ELSE known.resume_id END,
    updated_at = CASE WHEN string_to_array(excluded.entry_id, '-')::numeric[]
                           > string_to_array(known.entry_id, '-')::numeric[]
                        OR string_to_array(excluded.resume_id, '-')::numeric[]
                           > string_to_array(known.resume_id, '-')::numeric[]
                      THEN now() ELSE known.updated_at END
-- 0: workers that share the stream ask for no lease
WHERE known.token = excluded.token OR excluded.token = 0
