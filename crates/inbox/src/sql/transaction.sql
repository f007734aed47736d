START TRANSACTION ISOLATION LEVEL READ COMMITTED READ WRITE;
-- until it is closed, a COMMIT fails
DECLARE outflow_commit NO SCROLL CURSOR WITH HOLD FOR
    SELECT pg_catalog.to_char(pg_catalog.now(), '"leave COMMIT to the inbox"')::int4
