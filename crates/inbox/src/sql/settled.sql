SELECT entry_id, event_id FROM outflow.inbox
WHERE consumer_id = $1::text AND stream = $2::text AND entry_id = ANY ($3::text[])
UNION ALL
SELECT entry_id, event_id FROM outflow.conflict
WHERE consumer_id = $1 AND stream = $2 AND entry_id = ANY ($3)
UNION ALL
SELECT entry_id, event_id FROM outflow.dead_letter
WHERE consumer_id = $1 AND stream = $2 AND entry_id = ANY ($3)
