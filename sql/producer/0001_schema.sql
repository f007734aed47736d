-- The schema that holds everything of outflow, and the record of what was applied.
--
-- These files are plain SQL: read them, run them in the order of their numbers with any client, run
-- them again without harm. `outflow init` does the same and records each file in outflow.migration.
-- Needs: CREATE on the database.

CREATE SCHEMA IF NOT EXISTS outflow;

COMMENT ON SCHEMA outflow IS
    'outbox, inbox and connector state of outflow: events leave the database through its own log';

CREATE TABLE IF NOT EXISTS outflow.migration (
    side       text        NOT NULL,
    version    int         NOT NULL,
    name       text        NOT NULL,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (side, version)
);

COMMENT ON TABLE outflow.migration IS
    'which numbered SQL files were applied to this database';
COMMENT ON COLUMN outflow.migration.side IS
    'producer (where the outbox is), consumer (where the inbox is), demo-producer or demo-consumer';
COMMENT ON COLUMN outflow.migration.checksum IS
    'SHA-256 of the file, as sha256sum prints it';
