UPDATE outflow.position AS known SET holder = NULL, held_until = NULL
FROM unnest($3::text[], $4::int8[]) AS held (stream, token)
WHERE known.consumer_id = $1::text AND known.holder = $2::text AND known.stream = held.stream
  AND known.token = held.token
