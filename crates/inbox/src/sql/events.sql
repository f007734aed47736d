events AS (
    SELECT ordinal, event_id, aggregate_type, aggregate_id, seq, event_type,
           CASE WHEN is_jsonb THEN payload_text::jsonb END AS payload, payload_text, payload_raw,
           headers::jsonb AS headers, created_at, position, commit_time::timestamptz AS commit_time,
           stream, entry_id, extra::jsonb AS extra,
           coalesce(is_replacement, false) AS is_replacement, replaced_payload::jsonb AS replaced_payload
    FROM unnest($1::text[], $2::text[], $3::text[], $4::int8[], $5::text[], $6::bool[], $7::text[],
                $8::bytea[], $9::text[], $10::text[], $11::text[], $12::text[], $13::text[],
                $14::text[], $15::text[], $16::bool[], $17::text[]) WITH ORDINALITY
         AS event (event_id, aggregate_type, aggregate_id, seq, event_type, is_jsonb, payload_text,
                   payload_raw, headers, created_at, position, commit_time, stream, entry_id, extra,
                   is_replacement, replaced_payload,
                   ordinal)
    -- a fence: each payload is parsed once, however often it is mentioned, and columns that are not read never
    OFFSET 0
)