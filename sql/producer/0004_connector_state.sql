-- Where a connector stands, for offset.store = "postgres". The default store is Redis, which keeps
-- the offset in one transaction with the entries that it covers; here it follows them.
-- Needs: CREATE on schema outflow.

CREATE TABLE IF NOT EXISTS outflow.connector_offset (
    connector         text        PRIMARY KEY,
    system_identifier text        NOT NULL,
    timeline          int         NOT NULL,
    slot              text        NOT NULL,
    epoch             smallint    NOT NULL CHECK (epoch BETWEEN 0 AND 255),
    commit_lsn        pg_lsn,
    index             bigint      CHECK (index >= 0),
    end_lsn           pg_lsn      NOT NULL,
    commit_time       timestamptz,
    published_count   bigint      NOT NULL DEFAULT 0,
    at                timestamptz NOT NULL DEFAULT now(),
    snapshot          jsonb
);

COMMENT ON TABLE outflow.connector_offset IS
    'the position from which each connector resumes. Never edited by hand while a connector runs';
COMMENT ON COLUMN outflow.connector_offset.system_identifier IS
    'of the cluster that the LSNs belong to: they mean nothing in another one';
COMMENT ON COLUMN outflow.connector_offset.epoch IS
    'rises when LSNs restart or history forks, so that entry ids keep rising';
COMMENT ON COLUMN outflow.connector_offset.commit_lsn IS
    'commit record of the last published transaction; with index, the position of the last event. NULL before the first one';
COMMENT ON COLUMN outflow.connector_offset.index IS
    'which event of that transaction, counted from 0';
COMMENT ON COLUMN outflow.connector_offset.end_lsn IS
    'where replication resumes: the end of the last transaction that was published as a whole';
COMMENT ON COLUMN outflow.connector_offset.snapshot IS
    'progress of the initial snapshot while it lasts, else NULL';

CREATE TABLE IF NOT EXISTS outflow.connector_ledger (
    id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    connector         text        NOT NULL,
    system_identifier text        NOT NULL,
    timeline          int         NOT NULL,
    slot              text        NOT NULL,
    epoch             smallint    NOT NULL,
    commit_lsn        pg_lsn,
    index             bigint,
    end_lsn           pg_lsn      NOT NULL,
    commit_time       timestamptz,
    published_count   bigint      NOT NULL DEFAULT 0,
    at                timestamptz NOT NULL DEFAULT now(),
    snapshot          jsonb
);

CREATE INDEX IF NOT EXISTS connector_ledger_at ON outflow.connector_ledger (connector, at);

COMMENT ON TABLE outflow.connector_ledger IS
    'the history of offsets, bounded by offset.ledger_entries: maps a time to a position for replay';
