UPDATE outflow.parked SET suspect = $4::bool
FROM unnest($2::text[], $3::text[]) AS event (stream, entry_id)
WHERE consumer_id = $1::text AND parked.stream = event.stream AND parked.entry_id = event.entry_id
