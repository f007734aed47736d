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

#[tokio::test]
async fn a_standby_follows_and_is_promoted() {
    let primary = Postgres::builder().setting("max_connections", 300).start().await.unwrap();
    let standby = Postgres::builder().standby_of(&primary).start().await.unwrap();
    let client = primary.connect().await.unwrap();
    client.batch_execute("CREATE TABLE t AS SELECT 1 AS n").await.unwrap();
    let since = Instant::now();
    let follower = standby.connect().await.unwrap();
    while follower.query_one("SELECT n FROM t", &[]).await.is_err() {
        assert!(since.elapsed() < SOON);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    primary.kill().await.unwrap();
    standby.promote().await.unwrap();
    let timeline = "SELECT timeline_id FROM pg_control_checkpoint()";
    follower.batch_execute("INSERT INTO t VALUES (2); CHECKPOINT").await.unwrap();
    let timeline: i32 = follower.query_one(timeline, &[]).await.unwrap().get(0);
    assert_eq!(timeline, 2);
}

#[tokio::test]
async fn authentication_is_what_pg_hba_says() {
    let postgres = Postgres::builder().start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    client.batch_execute("CREATE ROLE relay LOGIN PASSWORD 'secret'").await.unwrap();
    postgres.pg_hba("host all relay 127.0.0.1/32 scram-sha-256").await.unwrap();
    let connect = async |user: &str| {
        let url = postgres.url_as(user, "postgres");
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.map(|_| ())
    };
    connect("relay:secret").await.unwrap();
    assert!(connect("relay:wrong").await.is_err());
    assert!(connect("postgres").await.is_err());
    // the sandbox itself always gets in
    postgres.connect().await.unwrap();
}

#[tokio::test]
async fn tls_is_served_with_the_given_certificate() {
    let tls = super::tls::Files::generate();
    let postgres =
        Postgres::builder().tls(&tls.certificate, &tls.key).tls_client_ca(&tls.certificate);
    let postgres = match postgres.start().await {
        Err(error) if error.is_without_tls() => return println!("skipped: {error}"),
        started => started.unwrap(),
    };
    let output = std::process::Command::new(postgres.tool("psql"))
        .arg(format!("{}?sslmode=verify-ca", postgres.url()))
        .args(["-Atc", "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"])
        .env("PGSSLROOTCERT", &tls.certificate)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "t", "{output:?}");
}

#[tokio::test]
async fn a_bad_setting_fails_with_the_servers_own_words() {
    let start = Postgres::builder().setting("wal_level", "nonsense").start().await;
    let error = start.unwrap_err().to_string();
    assert!(error.contains("invalid value for parameter \"wal_level\""), "{error}");

    let start = Postgres::builder().setting("a b", "c").start().await;
    assert!(matches!(start, Err(Error::BadSetting(_))));

    let start = Postgres::builder().bin_dir("/nowhere").start().await;
    assert!(matches!(start, Err(Error::Missing { program: "postgres", .. })));
}

#[tokio::test]
async fn a_smart_stop_waits_for_clients() {
    let postgres = Postgres::builder().start().await.unwrap();
    let client = postgres.connect().await.unwrap();
    let stop = postgres.stop(Shutdown::Smart, Duration::from_millis(200)).await;
    assert!(matches!(stop, Err(Error::StillRunning { server: "postgres", .. })));
    drop(client);
    postgres.stop(Shutdown::Immediate, SOON).await.unwrap();
    assert!(matches!(postgres.kill().await, Err(Error::NotRunning("postgres"))));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_killed_server_leaves_no_shared_memory() {
    let postgres = Postgres::builder().start().await.unwrap();
    let lock = std::fs::read_to_string(postgres.data_dir().join("postmaster.pid")).unwrap();
    let segment = lock.lines().nth(6).unwrap().split_whitespace().nth(1).unwrap().to_owned();
    let listed = || {
        let list = std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
        list.lines().any(|line| line.split_whitespace().nth(1) == Some(segment.as_str()))
    };
    postgres.kill().await.unwrap();
    assert!(listed());
    drop(postgres);
    assert!(!listed());
}
