-- What the log shows to the connector: inserts of one table.
--
-- Inserts only, because UPDATE and DELETE of a published table without a replica identity fail in
-- the application, and because an outbox row is a fact that neither of them changes.
-- The publication must be committed before the slot is created: decoding looks publications up in
-- the catalog as it was at the time of each change, so a slot that is older than the publication
-- fails on every change in between, for good. Keep this file ahead of the connector's first start.
-- Needs: CREATE on the database and ownership of the table.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = 'outflow') THEN
        CREATE PUBLICATION outflow FOR TABLE outflow.outbox WITH (publish = 'insert');
    END IF;
END
$$;

DO $$
BEGIN
    COMMENT ON PUBLICATION outflow IS
        'inserts into the outbox. Dropping it, even for a moment, breaks the connector''s slot';
EXCEPTION WHEN insufficient_privilege THEN
    NULL; -- it belongs to somebody else, who may comment on it
END
$$;
