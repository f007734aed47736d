//! What arrives: message kinds, values, shapes.

use outflow_pgoutput::{
    CreateSlotOptions, Error, FeedbackOptions, Origins, ReplicationClient, Retry, StartOptions,
    message::{Message, OldTuple},
};

use crate::support::{Bench, PUBLICATION, Reader, SLOT, eventually, options, values};

#[tokio::test]
async fn rows_arrive_in_commit_order_with_their_transactions() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.execute("BEGIN; INSERT INTO outbox VALUES (1, 'a', NULL), (2, '', 'x'); COMMIT").await;
    bench.emit(3).await;
    let first = reader.transaction().await;
    assert_eq!(first.kinds(), "RII");
    assert_eq!(first.rows(), [["1", "a", "<null>"], ["2", "", "x"]]);
    assert_eq!(first.final_lsn, first.commit_lsn);
    assert!(first.commit_lsn < first.end_lsn);
    let second = reader.transaction().await;
    assert_eq!((second.kinds().as_str(), second.ids()), ("I", vec![3]));
    assert!(second.commit_lsn >= first.end_lsn);
    reader.stop().await;
}

#[tokio::test]
async fn c01_truncate_of_the_outbox_is_a_message_like_others() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    bench.execute("TRUNCATE outbox").await;
    bench.emit(2).await;
    assert_eq!(reader.transaction().await.ids(), [1]);
    let truncate = reader.transaction().await;
    let sent = truncate.frames.last().unwrap();
    let Message::Truncate(message) = sent.message() else { panic!("{sent:?}") };
    assert_eq!(message.relations().count(), 1);
    assert!(!message.cascade && !message.restart_identity);
    assert_eq!(reader.confirm_until(2).await, [2]);
    let flush = reader.stop().await;
    assert!(flush > truncate.end_lsn);
}

#[tokio::test]
async fn c02_types_and_origins() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.execute("CREATE TYPE prio AS ENUM ('lo', 'hi'); CREATE DOMAIN short AS varchar(9)").await;
    bench.execute("ALTER TABLE outbox ADD COLUMN prio prio DEFAULT 'lo', ADD s short").await;
    bench.emit(1).await;
    let plain = reader.transaction().await;
    assert_eq!(plain.kinds(), "YYRI");
    let Message::Type(of_type) = plain.frames[0].message() else { panic!() };
    assert_eq!((of_type.namespace, of_type.name), ("public", "prio"));
    assert_eq!(plain.rows(), [["1", "T", "p1", "lo", "<null>"]]);

    bench
        .execute(
            "SELECT pg_replication_origin_create('upstream');
             SELECT pg_replication_origin_session_setup('upstream');
             BEGIN; SELECT pg_replication_origin_xact_setup('0/1234', now());
             INSERT INTO outbox VALUES (2, 'T', 'p2'); COMMIT",
        )
        .await;
    let replicated = reader.transaction().await;
    let Message::Origin(origin) = replicated.frames[0].message() else { panic!() };
    assert_eq!((origin.name, origin.commit_lsn), ("upstream", "0/1234".parse().unwrap()));
    assert_eq!(replicated.ids(), [2]);
    reader.stop().await;
}

#[tokio::test]
async fn c03_logical_messages_in_and_out_of_a_transaction() {
    let bench = Bench::start().await;
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.messages = true;
    let stream = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let mut reader = Reader::new(stream.unwrap());
    bench
        .execute(
            "BEGIN; INSERT INTO outbox VALUES (1, 'T', 'p');
             SELECT pg_logical_emit_message(false, 'hb', 'x');
             SELECT pg_logical_emit_message(true, 'hb', 'y'); COMMIT",
        )
        .await;
    let transaction = reader.transaction().await;
    assert_eq!(transaction.kinds(), "RIM");
    let Message::Message(inside) = transaction.frames[2].message() else { panic!() };
    assert!(inside.transactional);
    assert_eq!((inside.prefix, inside.content), ("hb", &b"y"[..]));
    let [outside] = &reader.outside[..] else { panic!("{:?}", reader.outside) };
    let Message::Message(outside) = outside.message() else { panic!() };
    assert!(!outside.transactional);
    assert_eq!((outside.prefix, outside.content), ("hb", &b"x"[..]));
    reader.stop().await;
}

#[tokio::test]
async fn c03_a_message_outside_of_transactions_confirms_nothing() {
    let bench = Bench::start().await;
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.messages = true;
    let stream = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let mut reader = Reader::new(stream.unwrap());
    bench.emit(1).await;
    let held = reader.transaction().await;
    bench.execute("SELECT pg_logical_emit_message(false, 'hb', 'x')").await;
    bench.emit(2).await;
    assert_eq!(reader.transaction().await.ids(), [2]);
    assert_eq!(reader.outside.len(), 1);
    // nothing was confirmed by the caller: the flush position stays below the first event
    assert!(reader.stop().await < held.commit_lsn);
    assert!(bench.confirmed_flush().await < held.commit_lsn);
}

#[tokio::test]
async fn c04_a_row_inserted_and_deleted_in_one_transaction_is_sent() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench
        .execute("BEGIN; INSERT INTO outbox VALUES (1, 'T', 'p'); DELETE FROM outbox; COMMIT")
        .await;
    let transaction = reader.transaction().await;
    assert_eq!((transaction.kinds().as_str(), transaction.ids()), ("RID", vec![1]));
    reader.stop().await;
}

#[tokio::test]
async fn c06_an_update_leaves_an_unchanged_large_column_out() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.execute("ALTER TABLE outbox ALTER payload SET STORAGE EXTERNAL").await;
    bench.execute("INSERT INTO outbox VALUES (1, 'T', repeat('x', 128 * 1024))").await;
    bench.execute("UPDATE outbox SET kind = 'T2'").await;
    bench.execute("UPDATE outbox SET id = 7; DELETE FROM outbox").await;
    assert_eq!(reader.transaction().await.rows()[0][2].len(), 128 * 1024);
    let update = reader.transaction().await;
    let Message::Update(message) = update.frames[0].message() else { panic!() };
    assert_eq!(message.old, None);
    assert_eq!(values(&message.new), ["1", "T2", "<unchanged>"]);

    let both = reader.transaction().await;
    let Message::Update(moved) = both.frames[0].message() else { panic!() };
    let Some(OldTuple::Key(key)) = moved.old else { panic!("{moved:?}") };
    assert_eq!(values(&key), ["1", "<null>", "<null>"]);
    let Message::Delete(gone) = both.frames[1].message() else { panic!() };
    let OldTuple::Key(key) = gone.old else { panic!("{gone:?}") };
    assert_eq!(values(&key)[0], "7");
    reader.stop().await;
}

#[tokio::test]
async fn c08_the_rows_of_a_copy_share_one_lsn() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench
        .execute("COPY outbox FROM PROGRAM 'printf \"1\\ta\\tx\\n2\\tb\\ty\\n3\\tc\\tz\\n\"'")
        .await;
    let copy = reader.transaction().await;
    assert_eq!(copy.ids(), [1, 2, 3]);
    let rows: Vec<_> = copy.frames.iter().filter(|sent| sent.body[0] == b'I').collect();
    assert!(rows.iter().all(|sent| sent.at == rows[0].at), "{rows:?}");
    reader.stop().await;
}

#[tokio::test]
async fn c10_an_early_row_of_a_late_commit_comes_late() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    let other = bench.pg.connect().await.unwrap();
    other.batch_execute("BEGIN; INSERT INTO outbox VALUES (1, 'T', 'early')").await.unwrap();
    bench.emit(2).await;
    other.batch_execute("COMMIT").await.unwrap();
    let (first, second) = (reader.transaction().await, reader.transaction().await);
    assert_eq!((first.ids(), second.ids()), (vec![2], vec![1]));
    let row =
        |t: &crate::support::Transaction| t.frames.iter().find(|s| s.body[0] == b'I').unwrap().at;
    assert!(row(&second) < row(&first), "rows are not in the order of their LSNs");
    assert!(second.commit_lsn > first.commit_lsn, "commits are");
    reader.stop().await;
}

#[tokio::test]
async fn c13_ddl_in_mid_transaction_is_described_before_its_rows() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench
        .execute(
            "BEGIN;
             INSERT INTO outbox VALUES (1, 'T', 'p');
             ALTER TABLE outbox ADD COLUMN x int DEFAULT 5;
             INSERT INTO outbox VALUES (2, 'T', 'p');
             ALTER TABLE outbox DROP COLUMN x;
             INSERT INTO outbox VALUES (3, 'T', 'p');
             ALTER TABLE outbox RENAME COLUMN payload TO body;
             INSERT INTO outbox VALUES (4, 'T', 'p');
             COMMIT",
        )
        .await;
    let transaction = reader.transaction().await;
    let mut relations = outflow_pgoutput::Relations::new();
    let mut seen = Vec::new();
    for sent in &transaction.frames {
        match sent.message() {
            Message::Relation(relation) => drop(relations.update(&relation)),
            Message::Insert(insert) => {
                let table = relations.get(insert.relation).unwrap();
                let columns: Vec<_> = table.columns.iter().map(|c| c.name.as_str()).collect();
                seen.push(format!("{} {:?}", columns.join(","), values(&insert.new)));
            }
            _ => {}
        }
    }
    assert_eq!(
        seen,
        [
            r#"id,kind,payload ["1", "T", "p"]"#,
            r#"id,kind,payload,x ["2", "T", "p", "5"]"#,
            r#"id,kind,payload ["3", "T", "p"]"#,
            r#"id,kind,body ["4", "T", "p"]"#,
        ]
    );
    reader.stop().await;
}

#[tokio::test]
async fn c21_settings_of_the_role_do_not_change_values() {
    let bench = Bench::start().await;
    bench
        .execute(
            "CREATE ROLE connector LOGIN REPLICATION;
             GRANT pg_read_all_data TO connector;
             ALTER ROLE connector SET bytea_output = 'escape';
             ALTER ROLE connector SET datestyle = 'SQL, DMY';
             ALTER ROLE connector SET intervalstyle = 'iso_8601';
             ALTER ROLE connector SET extra_float_digits = -3;
             ALTER ROLE connector SET timezone = 'Asia/Kathmandu';
             ALTER ROLE connector SET client_encoding = 'LATIN1';
             CREATE TABLE odd (b bytea, d date, f float8, i interval, t timestamptz, s text);
             ALTER PUBLICATION ob_pub ADD TABLE odd",
        )
        .await;
    // in the connection string they do not win either
    let url =
        format!("{}?options=-c%20datestyle%3DGerman", bench.pg.url_as("connector", "postgres"));
    let client = ReplicationClient::connect(&options(&url)).await.unwrap();
    assert_eq!(client.parameter("DateStyle"), Some("ISO, MDY"));
    assert_eq!(client.parameter("TimeZone"), Some("UTC"));
    assert_eq!(client.parameter("client_encoding"), Some("UTF8"));
    let start = StartOptions::new(SLOT, PUBLICATION);
    let stream = client.start_replication(start, FeedbackOptions::default()).await.unwrap();
    let mut reader = Reader::new(stream);
    bench
        .execute(
            r"INSERT INTO odd VALUES ('\x00ff41', '2024-02-03', 0.1::float8 + 0.2, '1 day 2 hours',
              '2024-02-03 04:05:06+00', 'äö€')",
        )
        .await;
    assert_eq!(
        reader.transaction().await.rows(),
        [[
            r"\x00ff41",
            "2024-02-03",
            "0.30000000000000004",
            "1 day 02:00:00",
            "2024-02-03 04:05:06+00",
            "äö€"
        ]]
    );
    reader.stop().await;
}

#[tokio::test]
async fn c24_c26_numbers_and_times_beyond_the_usual_arrive_as_text() {
    let bench = Bench::start().await;
    bench
        .execute(
            "CREATE TABLE odd (j jsonb, n numeric, t timestamptz, d date);
             ALTER PUBLICATION ob_pub ADD TABLE odd",
        )
        .await;
    let mut reader = bench.reader().await;
    let json = r#"{"n":9007199254740993,"u":18446744073709551616,"m":1e400,"d":0.10}"#;
    bench
        .execute(&format!(
            "INSERT INTO odd VALUES ('{json}', repeat('9', 400)::numeric, 'infinity', '-infinity');
             INSERT INTO odd VALUES ('null', 'NaN', '294276-12-31 23:59:59+00', '4713-01-01 BC');
             INSERT INTO odd VALUES (NULL, 'Infinity', '-infinity', 'infinity')"
        ))
        .await;
    let rows = reader.transaction().await.rows();
    let stored = bench.value("SELECT j::text FROM odd WHERE t = 'infinity'").await.unwrap();
    assert_eq!(rows[0][0], stored);
    assert!(rows[0][0].contains("9007199254740993") && rows[0][0].contains("0.10"));
    assert!(rows[0][0].contains(&format!("1{}", "0".repeat(400))));
    assert_eq!(rows[0][1], "9".repeat(400));
    assert_eq!(rows[0][2..], ["infinity", "-infinity"]);
    assert_eq!(rows[1], ["null", "NaN", "294276-12-31 23:59:59+00", "4713-01-01 BC"]);
    assert_eq!(rows[2], ["<null>", "Infinity", "-infinity", "infinity"]);
    reader.stop().await;
}

#[tokio::test]
async fn binary_values() {
    let bench = Bench::start().await;
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.binary = true;
    let stream = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let mut reader = Reader::new(stream.unwrap());
    bench.emit(258).await;
    assert_eq!(reader.transaction().await.rows()[0][0], "[0, 0, 1, 2]");
    reader.stop().await;
}

#[tokio::test]
async fn c65_a_large_value_arrives_whole() {
    let bench = Bench::start().await;
    let mut reader = bench.reader().await;
    bench.execute("INSERT INTO outbox VALUES (1, 'T', repeat('0123456789abcdef', 4 << 20))").await;
    let rows = reader.transaction().await.rows();
    assert_eq!(rows[0][2].len(), 64 << 20);
    assert!(rows[0][2].ends_with("def"));
    reader.stop().await;
}

#[tokio::test]
async fn c65_a_value_above_max_message_is_named() {
    let bench = Bench::start().await;
    let feedback = FeedbackOptions { max_message: 1 << 20, ..FeedbackOptions::default() };
    let mut reader = bench.reader_with(feedback).await;
    bench.emit(1).await;
    bench.execute("INSERT INTO outbox VALUES (2, 'T', repeat('x', 2 << 20))").await;
    let (before, error) = reader.ends().await;
    assert_eq!(before.len(), 1);
    assert!(matches!(error, Error::MessageTooLarge { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("max_message"), "{error}");
    // once only
    assert!(reader.stream.next().await.unwrap().is_none());
}

#[tokio::test]
async fn c18_a_missing_publication_is_fatal_and_names_it() {
    let bench = Bench::start().await;
    let start = StartOptions::new(SLOT, "it's \"missing\"");
    let stream = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let mut reader = Reader::new(stream.unwrap());
    bench.emit(1).await;
    let (_, error) = reader.ends().await;
    assert!(matches!(error, Error::PublicationMissing(_)), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("it's \"missing\""), "{error}");
}

#[tokio::test]
async fn c18_a_publication_dropped_and_created_again_leaves_a_gap_that_is_not_passed() {
    let bench = Bench::start().await;
    bench.execute("ALTER ROLE postgres SET client_min_messages = error").await;
    let mut reader = bench.reader().await;
    bench.emit(1).await;
    reader.confirm_until(1).await;
    let confirmed = reader.stream.confirmed();
    let table = format!("CREATE PUBLICATION {PUBLICATION} FOR TABLE outbox");
    bench.execute(&format!("DROP PUBLICATION {PUBLICATION}")).await;
    bench.emit(2).await;
    let gap = bench.tip().await;
    bench.execute(&table).await;
    bench.emit(3).await;
    for _ in 0..2 {
        let (before, error) = reader.ends().await;
        let ids: Vec<_> = before.iter().flat_map(|t| t.ids()).collect();
        assert!(ids.is_empty(), "{ids:?} {error}");
        assert!(matches!(error, Error::PublicationMissing(_)), "{error}");
        assert!(bench.confirmed_flush().await < gap);
        // trying again does not help, and does no harm
        eventually("the slot is free", || async { !bench.slot_is_active().await }).await;
        reader = bench.reader_at(confirmed).await;
    }
}

#[tokio::test]
async fn publication_names_are_quoted() {
    let bench = Bench::start().await;
    bench.execute("CREATE PUBLICATION \"My, 'odd' \"\"pub\\\" FOR TABLE outbox").await;
    let mut client = bench.client().await;
    client.drop_slot(SLOT, true).await.unwrap();
    client.create_slot(SLOT, CreateSlotOptions::default()).await.unwrap();
    let mut start = StartOptions::new(SLOT, "My, 'odd' \"pub\\");
    start.publications.push(PUBLICATION.to_owned());
    let stream = client.start_replication(start, FeedbackOptions::default()).await.unwrap();
    let mut reader = Reader::new(stream);
    bench.emit(1).await;
    assert_eq!(reader.confirm_until(1).await, [1]);
    reader.stop().await;
}

#[tokio::test]
async fn origins_can_be_left_out_from_16_on() {
    let bench = Bench::start().await;
    let mut start = StartOptions::new(SLOT, PUBLICATION);
    start.origin = Origins::Local;
    let result = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    if bench.pg.version() < 16 {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::Unsupported { needs: 16, .. }), "{error}");
        return;
    }
    let mut reader = Reader::new(result.unwrap());
    bench
        .execute(
            "SELECT pg_replication_origin_create('up'); SELECT pg_replication_origin_session_setup('up');
             INSERT INTO outbox VALUES (1, 'T', 'p');
             SELECT pg_replication_origin_session_reset(); INSERT INTO outbox VALUES (2, 'T', 'p')",
        )
        .await;
    let other = bench.pg.connect().await.unwrap();
    other.batch_execute("INSERT INTO outbox VALUES (3, 'T', 'p')").await.unwrap();
    let mut ids = Vec::new();
    while ids.last() != Some(&3) {
        ids.extend(reader.transaction().await.ids());
    }
    assert!(!ids.contains(&1), "{ids:?}");
    reader.stop().await;
}
