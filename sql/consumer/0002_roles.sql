-- Least privilege for the process that applies events.
--
-- outflow_consumer cannot log in: grant it to the login role of the worker, and grant it what the projection needs:
--     GRANT outflow_consumer TO accounting_worker;
--     GRANT SELECT, INSERT, UPDATE ON turnover TO accounting_worker;
-- Roles belong to the whole cluster. Where the one who runs this may not create them, nothing fails: a notice says so,
-- and the worker must then be granted the rights below by hand, or run as the owner of the tables.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        CREATE ROLE outflow_consumer NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
    END IF;
EXCEPTION
    WHEN duplicate_object OR unique_violation THEN
        NULL; -- another migration created it at the same moment
    WHEN insufficient_privilege THEN
        RAISE NOTICE 'role outflow_consumer is missing and % may not create it: ask a role with CREATEROLE to run '
            'CREATE ROLE outflow_consumer NOLOGIN, then run this file again', current_user;
END
$$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'outflow_consumer') THEN
        RETURN;
    END IF;
    GRANT USAGE ON SCHEMA outflow TO outflow_consumer;
    -- an applied event is never changed and never deleted by the worker that applied it
    GRANT SELECT, INSERT ON outflow.inbox TO outflow_consumer;
    GRANT SELECT, INSERT ON outflow.conflict TO outflow_consumer;
    GRANT SELECT, INSERT, UPDATE ON outflow.dead_letter TO outflow_consumer;
    GRANT SELECT, INSERT, UPDATE ON outflow.position TO outflow_consumer;
    GRANT SELECT ON outflow.migration TO outflow_consumer;
END
$$;

DO $$
BEGIN
    COMMENT ON ROLE outflow_consumer IS 'applies events; grant it to the login role of the workers';
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    NULL;
END
$$;
