-- Who may remove what nobody needs any more.
--
-- Workers may not delete what they have applied. Where `[retention]` is to clean up the inbox, grant this role too:
--     GRANT outflow_retention TO accounting_worker;
--
-- Run it as the owner of the tables, as the files before it. It may be run again at any time.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_retention') THEN
        CREATE ROLE outflow_retention NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- another migration created it at the same moment
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role outflow_retention is missing and % may not create it: ask a role with CREATEROLE to run '
            'CREATE ROLE outflow_retention NOLOGIN, then run this file again', current_user;
END
$$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_retention') THEN
        RETURN;
    END IF;
    GRANT USAGE ON SCHEMA outflow TO outflow_retention;
    GRANT SELECT, DELETE ON outflow.inbox, outflow.conflict, outflow.dead_letter, outflow.lost_entries
        TO outflow_retention;
    GRANT SELECT ON outflow.position TO outflow_retention;
END
$$;

DO $$
BEGIN
    COMMENT ON ROLE outflow_retention IS 'removes what nobody needs any more; grant it to whoever runs retention';
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    NULL;
END
$$;
