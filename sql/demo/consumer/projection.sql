-- Applies a batch of the demo's events to `turnover`. Run by `outflow consume` over the relation `events`,
-- in the transaction that writes the inbox rows.
--
-- The producer writes:
--     aggregate_type  journal
--     aggregate_id    the consumer (customer), for example c-17: its journals stay in order
--     event_type      Posted
--     payload         {"journal_id": "j-1", "consumer": "c-17", "currency": "EUR", "amount": 12345}
-- `amount` is an integer in atomic units, a JSON number or a string ("12345"): both are read as numeric, never as a float.

INSERT INTO turnover AS t (consumer, currency, amount, journals)
SELECT payload ->> 'consumer',
       payload ->> 'currency',
       sum((payload ->> 'amount')::numeric),
       count(*)
FROM events
WHERE aggregate_type = 'journal' AND event_type = 'Posted'
GROUP BY 1, 2
ORDER BY 1, 2 -- every worker locks the rows in the same order, so that two of them cannot deadlock
ON CONFLICT (consumer, currency) DO UPDATE
SET amount   = t.amount + excluded.amount,
    journals = t.journals + excluded.journals;
