-- app.db: the business table, and beside it the events that its transactions write.
CREATE TABLE IF NOT EXISTS orders (
    id  INTEGER PRIMARY KEY,
    sku TEXT    NOT NULL,
    qty INTEGER NOT NULL CHECK (qty > 0)
);

CREATE TABLE IF NOT EXISTS outbox (
    event_id     TEXT    PRIMARY KEY NOT NULL,
    aggregate_id TEXT    NOT NULL,
    seq          INTEGER NOT NULL,
    event_type   TEXT    NOT NULL,
    payload      TEXT    NOT NULL,
    status       TEXT    NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'PUBLISHED')),
    UNIQUE (aggregate_id, seq)
);

-- The relay asks for pending rows again and again; published ones cost it nothing. In this order
-- the index also answers ORDER BY aggregate_id, seq.
CREATE INDEX IF NOT EXISTS outbox_pending ON outbox (aggregate_id, seq) WHERE status = 'PENDING';
