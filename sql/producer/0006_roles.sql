-- Two group roles with the least that each side needs. They cannot log in; grant them to the roles
-- that do. Roles belong to the whole cluster: where they may not be created, a notice says so, and
-- somebody who may can run this file again.
--
-- The connector's own role, by hand, because of its password:
--
--   CREATE ROLE my_connector LOGIN REPLICATION PASSWORD '...' IN ROLE outflow_connector;
--
-- REPLICATION must stand on the login role itself: unlike privileges, attributes of a role are not
-- inherited by its members, and outflow_connector could not pass it on.
-- (Managed services have a role for it instead, for example GRANT rds_replication TO my_connector.)
--
-- The application's role:
--
--   GRANT outflow_producer TO my_application;
--
-- Needs: CREATEROLE for the roles, ownership of the objects for the grants.

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['outflow_connector', 'outflow_producer'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', name);
            EXCEPTION
                WHEN insufficient_privilege THEN
                    RAISE NOTICE 'role % was not created: % may not create roles. Let a role with CREATEROLE run this file again, or grant the privileges in it to your own roles', name, current_user;
                WHEN duplicate_object OR unique_violation THEN
                    NULL; -- somebody else created it at the same moment
            END;
        END IF;
    END LOOP;
END
$$;

-- Grants of what is there to the roles that are there: an outbox of your own under another name has
-- no outflow.outbox, and a role may be missing (see above).
DO $$
DECLARE
    role   text;
    object text;
    list   text;
BEGIN
    FOR role, object, list IN VALUES
        ('outflow_connector', 'SCHEMA outflow', 'USAGE'),
        -- the initial snapshot, replay and reconciliation read the rows; the log needs no SELECT
        ('outflow_connector', 'outflow.outbox', 'SELECT'),
        ('outflow_connector', 'outflow.connector_offset', 'SELECT, INSERT, UPDATE'),
        -- old lines of the ledger are deleted, never changed
        ('outflow_connector', 'outflow.connector_ledger', 'SELECT, INSERT, DELETE'),
        ('outflow_connector', 'outflow.migration', 'SELECT'),
        ('outflow_producer', 'SCHEMA outflow', 'USAGE'),
        -- SELECT on the event id is for INSERT .. RETURNING in emit
        ('outflow_producer', 'outflow.outbox', 'INSERT, SELECT (event_id)'),
        ('outflow_producer',
         'FUNCTION outflow.emit(text, text, text, jsonb, text, bigint, jsonb)', 'EXECUTE'),
        ('outflow_producer',
         'FUNCTION outflow.emit_message(text, text, text, jsonb, text, bigint, jsonb)', 'EXECUTE')
    LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM pg_roles WHERE rolname = role);
        CONTINUE WHEN object NOT LIKE 'SCHEMA %' AND COALESCE(
            to_regclass(CASE WHEN object LIKE 'FUNCTION %' THEN NULL ELSE object END)::oid,
            to_regprocedure(CASE WHEN object LIKE 'FUNCTION %' THEN substr(object, 10) END)::oid
        ) IS NULL;
        EXECUTE format('GRANT %s ON %s TO %I', list, object, role);
    END LOOP;
END
$$;

DO $$
BEGIN
    COMMENT ON ROLE outflow_connector IS 'reads the outbox and keeps offsets; grant it to the connector';
    COMMENT ON ROLE outflow_producer IS 'emits events; grant it to applications';
EXCEPTION WHEN insufficient_privilege OR undefined_object THEN
    NULL;
END
$$;
