//! The SQL of the consumer's side, run by hand and with little privilege.

use crate::support::{Bed, MIGRATIONS, PROJECTION, TURNOVER, start};
use outflow_inbox::{SqlProjection, connect_no_tls};
use outflow_sandbox::shared_postgres;

#[tokio::test]
async fn the_files_may_be_run_again() {
    let bed = Bed::new().await;
    for migration in MIGRATIONS.into_iter().chain([TURNOVER]).chain(MIGRATIONS) {
        bed.sql.batch_execute(migration).await.unwrap();
    }
    let undocumented = bed
        .count(
            "pg_class WHERE relnamespace = 'outflow'::regnamespace AND relkind = 'r' \
             AND relname <> 'migration' AND obj_description(oid) IS NULL",
        )
        .await;
    assert_eq!(undocumented, 0);
}

#[tokio::test]
async fn an_owner_who_may_not_create_roles_can_run_them() {
    let postgres = shared_postgres().await.unwrap();
    let admin = postgres.connect().await.unwrap();
    let database = postgres.fresh_database().await.unwrap();
    let owner = format!("{}_owner", database.name);
    admin
        .batch_execute(&format!(
            "CREATE ROLE \"{owner}\" LOGIN; ALTER DATABASE \"{}\" OWNER TO \"{owner}\"",
            database.name
        ))
        .await
        .unwrap();
    let url = postgres.url_as(&owner, &database.name);
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for migration in MIGRATIONS {
        client.batch_execute(migration).await.unwrap();
    }
}

#[tokio::test]
async fn outflow_consumer_is_all_that_a_worker_needs() {
    let mut bed = Bed::new().await;
    let worker = format!("{}_worker", bed.database.name);
    bed.sql
        .batch_execute(&format!(
            "CREATE ROLE \"{worker}\" LOGIN IN ROLE outflow_consumer; \
             REVOKE ALL ON SCHEMA public FROM PUBLIC; GRANT USAGE ON SCHEMA public TO \"{worker}\""
        ))
        .await
        .unwrap();
    let connect = connect_no_tls(&bed.postgres.url_as(&worker, &bed.database.name));
    bed.log.expect_warn("conflict");
    bed.log.expect_warn("set aside in outflow.dead_letter");
    bed.add("e1", "1", b"{}").await;
    bed.add("e1", "1", b"[]").await;
    let stream = bed.stream.clone();
    bed.redis_command(&["XADD", &stream, "*", "foo", "bar"]).await;
    let mut running = start(bed.options(), connect, SqlProjection::parse(PROJECTION).unwrap());
    running.until(|counts| counts.acknowledged == 3).await;
    let counts = running.stop().await.counts;
    assert_eq!((counts.applied, counts.conflicts, counts.malformed), (1, 1, 1));
}
