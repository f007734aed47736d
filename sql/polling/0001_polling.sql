-- What the polling relay needs in the outbox: who has claimed a row until when, and when it was
-- published. Only for those who poll (`outflow init --polling`): the connector reads the log, needs
-- none of it, and three further indexes cost every insert and every mark something.
--
-- On a large outbox the indexes lock out writers while they are built: run the statements one by one
-- then, with CREATE INDEX CONCURRENTLY, before this file.
--
-- Every row that is there when the polling relay starts and has no published_at is published. Mark
-- what a connector has published before (docs/runbook.md, "From the connector to polling").
-- Needs: ownership of the table, CREATE on schema outflow, CREATEROLE for the role.

ALTER TABLE outflow.outbox ADD COLUMN IF NOT EXISTS claimed_by text;
ALTER TABLE outflow.outbox ADD COLUMN IF NOT EXISTS claimed_until timestamptz;
ALTER TABLE outflow.outbox ADD COLUMN IF NOT EXISTS published_at timestamptz;

COMMENT ON COLUMN outflow.outbox.claimed_by IS
    'which run of a polling relay is publishing the row; says nothing about whether it is published';
COMMENT ON COLUMN outflow.outbox.claimed_until IS
    'when the claim lapses, by this server''s clock: after that any polling relay may take the row';
COMMENT ON COLUMN outflow.outbox.published_at IS
    'when the polling relay learnt that the broker has the event. NULL: not yet. The connector never sets it';

-- what is left to publish, in order
CREATE INDEX IF NOT EXISTS outbox_unpublished ON outflow.outbox (id) WHERE published_at IS NULL;
-- which aggregates are claimed: never more rows than the relays hold
CREATE INDEX IF NOT EXISTS outbox_claimed ON outflow.outbox (claimed_until)
    WHERE published_at IS NULL AND claimed_until IS NOT NULL;
-- what the clean-up may delete
CREATE INDEX IF NOT EXISTS outbox_published ON outflow.outbox (published_at)
    WHERE published_at IS NOT NULL;

-- Wakes polling relays that listen (polling.wake_up = "notify"). The trigger is yours to create,
-- because NOTIFY has a price: PostgreSQL lets only one transaction that notifies commit at a time.
--
--   CREATE TRIGGER wake_relay AFTER INSERT ON outflow.outbox
--       FOR EACH STATEMENT EXECUTE FUNCTION outflow.wake_relay();
CREATE OR REPLACE FUNCTION outflow.wake_relay() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NOTIFY outflow_outbox;
    RETURN NULL;
END
$$;

COMMENT ON FUNCTION outflow.wake_relay() IS
    'statement trigger for an outbox: tells polling relays at the commit that there is something';

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'outflow_polling') THEN
        CREATE ROLE outflow_polling NOLOGIN;
    END IF;
EXCEPTION
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role outflow_polling was not created: % may not create roles. Let a role with CREATEROLE run this file again, or grant the privileges in it to your own role', current_user;
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- somebody else created it at the same moment
END
$$;

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outflow_polling') THEN
        GRANT USAGE ON SCHEMA outflow TO outflow_polling;
        -- DELETE is for the clean-up of published rows alone
        GRANT SELECT, UPDATE (claimed_by, claimed_until, published_at), DELETE
            ON outflow.outbox TO outflow_polling;
        GRANT SELECT ON outflow.migration TO outflow_polling;
    END IF;
END
$$;

DO $$
BEGIN
    COMMENT ON ROLE outflow_polling IS 'claims and marks outbox rows; grant it to the polling relay';
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    NULL;
END
$$;
