-- The demo's projection: turnover per consumer and currency.
--
-- Amounts are integers in the currency's atomic unit (cents, satoshi) and are never floats: money that is rounded once
-- per event is wrong after a million of them. Amounts of two currencies are never added.

CREATE TABLE IF NOT EXISTS turnover (
    consumer text    NOT NULL,
    currency text    NOT NULL,
    amount   numeric NOT NULL CHECK (amount = trunc(amount)),
    journals bigint  NOT NULL CHECK (journals > 0),
    PRIMARY KEY (consumer, currency)
) WITH (fillfactor = 70);

COMMENT ON TABLE turnover IS
    'Sum of the journals posted for a consumer (a customer, not an outflow consumer), one row per currency.';
COMMENT ON COLUMN turnover.amount IS 'In atomic units of the currency; numeric because a sum of bigints can outgrow bigint.';
COMMENT ON COLUMN turnover.journals IS 'How many journals were summed: exactly one per event, so doubles show here first.';

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        GRANT SELECT, INSERT, UPDATE ON turnover TO outflow_consumer;
    END IF;
END
$$;
