-- Who may remove outbox rows that everybody has applied.
--
-- The connector itself only reads. Where `[retention]` is to clean up the outbox, grant its role this one too:
--
--   GRANT outflow_retention TO my_connector;
--
-- Dropping whole partitions needs their owner: GRANT the owner's role, or leave it at deleting rows.
-- Needs: CREATEROLE for the role, ownership of the objects for the grants.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'outflow_retention') THEN
        CREATE ROLE outflow_retention NOLOGIN;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- somebody else created it at the same moment
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role outflow_retention was not created: % may not create roles. Let a role with CREATEROLE run this file again, or grant the privileges in it to your own role', current_user;
END
$$;

-- An outbox of your own under another name has no outflow.outbox: grant SELECT, DELETE on it yourself.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'outflow_retention') THEN
        GRANT USAGE ON SCHEMA outflow TO outflow_retention;
        IF to_regclass('outflow.outbox') IS NOT NULL THEN
            GRANT SELECT, DELETE ON outflow.outbox TO outflow_retention;
        END IF;
    END IF;
END
$$;

DO $$
BEGIN
    COMMENT ON ROLE outflow_retention IS 'removes what nobody needs any more; grant it to whoever runs retention';
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    NULL;
END
$$;
