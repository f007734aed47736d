//! The PostgreSQL server of the sandbox.

use std::time::{Duration, Instant};

use outflow_sandbox::{Error, Postgres, Shutdown, shared_postgres};

const SOON: Duration = Duration::from_secs(10);

#[tokio::test]
async fn data_survives_stop_kill_and_restart() {
    let since = Instant::now();
    let postgres = Postgres::builder().start().await.unwrap();
    println!("start: {:?}", since.elapsed());
    let (port, pid) = (postgres.port(), postgres.pid().unwrap());
    let client = postgres.connect().await.unwrap();
    client.batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)").await.unwrap();

    println!("stop: {:?}", postgres.stop(Shutdown::Fast, SOON).await.unwrap());
    assert_eq!(postgres.pid(), None);
    assert!(postgres.connect().await.is_err());
    println!("start again: {:?}", postgres.start_again().await.unwrap());
    let client = postgres.connect().await.unwrap();
    client.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();

    let since = Instant::now();
    postgres.kill().await.unwrap();
    println!("kill: {:?}", since.elapsed());
    println!("recover: {:?}", postgres.start_again().await.unwrap());
    assert_ne!(postgres.pid().unwrap(), pid);
    assert_eq!(postgres.port(), port);
    let client = postgres.connect().await.unwrap();
    let count: i64 = client.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get(0);
    assert_eq!(count, 2);
    assert!(postgres.log().contains("database system was interrupted"));
    assert!(matches!(postgres.start_again().await, Err(Error::AlreadyRunning(_))));
    let since = Instant::now();
    let data = postgres.data_dir();
    drop(postgres);
    println!("drop: {:?}", since.elapsed());
    assert!(!data.exists());
}

#[tokio::test]
async fn databases_are_apart_and_settings_apply() {
    let postgres = shared_postgres().await.unwrap();
    let (a, b) =
        (postgres.fresh_database().await.unwrap(), postgres.fresh_database().await.unwrap());
    assert_ne!(a.name, b.name);
    let client = postgres.connect_to(&a.name).await.unwrap();
    let level: String = client.query_one("SHOW wal_level", &[]).await.unwrap().get(0);
    assert_eq!(level, "logical");
    postgres.alter_system("wal_sender_timeout", "5s").await.unwrap();
    let client = postgres.connect().await.unwrap();
    let timeout: String = client.query_one("SHOW wal_sender_timeout", &[]).await.unwrap().get(0);
    assert_eq!(timeout, "5s");
}
