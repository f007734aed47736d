-- A small double-entry ledger: the producer of the demo, the comparison and the drills.
--
-- Every posting is one transaction that writes a journal line, two entries that sum to zero, two
-- balances and one event. Amounts are whole numbers of the currency's smallest unit, never floats.
-- Needs: CREATE on the database; sql/producer applied before.

CREATE SCHEMA IF NOT EXISTS ledger;

COMMENT ON SCHEMA ledger IS 'demo of a producer: a double-entry ledger that emits journal events';

CREATE TABLE IF NOT EXISTS ledger.journal (
    journal_id text        PRIMARY KEY,
    customer   text        NOT NULL,
    seq        bigint      NOT NULL,
    posted_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (customer, seq)
);

COMMENT ON COLUMN ledger.journal.seq IS 'number within the customer, without gaps, in commit order';

CREATE TABLE IF NOT EXISTS ledger.entries (
    journal_id text    NOT NULL REFERENCES ledger.journal,
    line       int     NOT NULL,
    account    text    NOT NULL,
    currency   text    NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    amount     bigint  NOT NULL CHECK (amount <> 0),
    PRIMARY KEY (journal_id, line)
);

COMMENT ON COLUMN ledger.entries.amount IS
    'in the smallest unit of the currency; above zero is a debit, below zero a credit';

CREATE TABLE IF NOT EXISTS ledger.balance (
    account  text   NOT NULL,
    currency text   NOT NULL,
    amount   bigint NOT NULL,
    PRIMARY KEY (account, currency)
);

CREATE TABLE IF NOT EXISTS ledger.customer (
    customer text   PRIMARY KEY,
    seq      bigint NOT NULL
);

COMMENT ON TABLE ledger.customer IS
    'the last seq of each customer; its row lock makes the order of seq the order of commits';

-- Checked at commit, when both entries of a journal line are there.
CREATE OR REPLACE FUNCTION ledger.entries_sum_to_zero() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    id      text;
    failing text;
BEGIN
    FOREACH id IN ARRAY CASE TG_OP
        WHEN 'INSERT' THEN ARRAY[NEW.journal_id]
        WHEN 'DELETE' THEN ARRAY[OLD.journal_id]
        ELSE ARRAY[OLD.journal_id, NEW.journal_id]
    END LOOP
        SELECT format('%s %s', sum(amount), currency) INTO failing
        FROM ledger.entries WHERE journal_id = id GROUP BY currency HAVING sum(amount) <> 0 LIMIT 1;
        IF FOUND THEN
            RAISE EXCEPTION 'entries of journal % do not sum to zero: % is left over', id, failing
                USING ERRCODE = 'check_violation', CONSTRAINT = 'entries_sum_to_zero';
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

DO $$
BEGIN
    CREATE CONSTRAINT TRIGGER entries_sum_to_zero
        AFTER INSERT OR UPDATE OR DELETE ON ledger.entries
        DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION ledger.entries_sum_to_zero();
EXCEPTION WHEN duplicate_object THEN
    NULL;
END
$$;

-- Posts `amount` from the account `credit` to the account `debit` on behalf of `customer` and returns
-- the event's seq. Posting a journal id twice fails with a unique violation: safe to retry.
--
-- Locks are taken in one order, the customer first and then the balances by account, so that
-- concurrent postings wait for each other but never deadlock. Post once per transaction, or for one
-- customer only, to keep it so.
CREATE OR REPLACE FUNCTION ledger.post(
    journal_id text,
    debit      text,
    credit     text,
    customer   text,
    currency   text,
    amount     bigint
) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    next_seq bigint;
BEGIN
    IF post.debit = post.credit THEN
        RAISE EXCEPTION 'journal % debits and credits the same account %', post.journal_id, post.debit
            USING ERRCODE = 'check_violation';
    END IF;
    IF post.amount IS NULL OR post.amount <= 0 THEN
        RAISE EXCEPTION 'journal % has the amount %: expected a whole number above zero',
            post.journal_id, post.amount USING ERRCODE = 'check_violation';
    END IF;

    -- the lock is held to the end of the transaction: the next seq of this customer waits for it
    INSERT INTO ledger.customer AS known (customer, seq) VALUES (post.customer, 1)
    ON CONFLICT (customer) DO UPDATE SET seq = known.seq + 1
    RETURNING known.seq INTO next_seq;

    INSERT INTO ledger.journal (journal_id, customer, seq)
    VALUES (post.journal_id, post.customer, next_seq);

    INSERT INTO ledger.entries (journal_id, line, account, currency, amount)
    VALUES (post.journal_id, 1, post.debit, post.currency, post.amount),
           (post.journal_id, 2, post.credit, post.currency, -post.amount);

    INSERT INTO ledger.balance AS known (account, currency, amount)
    SELECT side.account, post.currency, side.amount
    FROM (VALUES (post.debit, post.amount), (post.credit, -post.amount)) AS side (account, amount)
    ORDER BY side.account
    ON CONFLICT (account, currency) DO UPDATE SET amount = known.amount + excluded.amount;

    PERFORM outflow.emit(
        'journal', post.customer, 'Posted',
        jsonb_build_object('journal_id', post.journal_id, 'consumer', post.customer,
                           'currency', post.currency, 'amount', post.amount),
        seq => next_seq);
    RETURN next_seq;
END
$$;

COMMENT ON FUNCTION ledger.post(text, text, text, text, text, bigint) IS
    'posts one journal line with its two entries and balances, and emits a journal event';
