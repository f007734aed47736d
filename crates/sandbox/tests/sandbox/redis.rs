//! The Redis server of the sandbox.

use std::time::{Duration, Instant};

use outflow_sandbox::{Error, Fsync, Redis, RedisCluster};
use redis::AsyncCommands;

#[tokio::test]
async fn data_survives_stop_kill_and_restart() {
    let since = Instant::now();
    let server = Redis::builder().appendonly(Fsync::Always).start().await.unwrap();
    println!("start: {:?} version {}", since.elapsed(), server.version());
    let mut connection = server.connect().await.unwrap();
    let _: () = connection.set("a", 1).await.unwrap();
    println!("stop: {:?}", server.stop(Duration::from_secs(10)).await.unwrap());
    println!("start again: {:?}", server.start_again().await.unwrap());
    let mut connection = server.connect().await.unwrap();
    let _: () = connection.set("b", 2).await.unwrap();
    let since = Instant::now();
    server.kill().await.unwrap();
    println!("kill: {:?}", since.elapsed());
    server.start_again().await.unwrap();
    let mut connection = server.connect().await.unwrap();
    let sum: (i32, i32) = connection.mget(&["a", "b"]).await.unwrap();
    assert_eq!(sum, (1, 2));
    let dir = server.dir().to_path_buf();
    drop(server);
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_replica_follows_and_is_promoted() {
    let primary = Redis::builder().password("secret").start().await.unwrap();
    let replica = Redis::builder().start().await.unwrap();
    replica.replica_of(&primary).await.unwrap();
    let mut to_primary = primary.connect().await.unwrap();
    let _: () = to_primary.set("a", 1).await.unwrap();
    let acknowledged: i32 =
        redis::cmd("WAIT").arg(1).arg(1000).query_async(&mut to_primary).await.unwrap();
    assert_eq!(acknowledged, 1);
    primary.kill().await.unwrap();
    replica.promote().await.unwrap();
    let mut to_replica = replica.connect().await.unwrap();
    let _: () = to_replica.set("b", 2).await.unwrap();
    assert_eq!(to_replica.get::<_, i32>("a").await.unwrap(), 1);
}

#[tokio::test]
async fn a_paused_server_keeps_the_connection_and_answers_later() {
    let server = Redis::builder().start().await.unwrap();
    let mut connection = server.connect().await.unwrap();
    server.sigstop().unwrap();
    let mut asking = connection.clone();
    let answer = tokio::spawn(async move { asking.incr::<_, _, i32>("n", 1).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!answer.is_finished());
    server.sigcont().unwrap();
    assert_eq!(answer.await.unwrap().unwrap(), 1);
    assert_eq!(connection.get::<_, i32>("n").await.unwrap(), 1);
}

#[tokio::test]
async fn a_full_server_refuses() {
    let server = Redis::builder().setting("maxmemory", "3mb").start().await.unwrap();
    let mut connection = server.connect().await.unwrap();
    let big = "x".repeat(4 << 20);
    let _ = connection.set::<_, _, ()>("big", &big).await;
    let error = connection.set::<_, _, ()>("more", 1).await.unwrap_err();
    assert_eq!(error.code(), Some("OOM"));
    server.config_set("maxmemory", "0").await.unwrap();
    connection.set::<_, _, ()>("more", 1).await.unwrap();
}

#[tokio::test]
async fn a_sentinel_fails_over() {
    let primary = Redis::builder().start().await.unwrap();
    let replica = Redis::builder().start().await.unwrap();
    replica.replica_of(&primary).await.unwrap();
    let sentinel = Redis::builder().sentinel_of("main", &primary, 1).start().await.unwrap();
    let mut connection = sentinel.connect().await.unwrap();
    let since = Instant::now();
    let mut known = 0;
    while known == 0 {
        assert!(since.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let replicas: Vec<redis::Value> = redis::cmd("SENTINEL")
            .arg(&["REPLICAS", "main"])
            .query_async(&mut connection)
            .await
            .unwrap();
        known = replicas.len();
    }
    primary.kill().await.unwrap();
    let since = Instant::now();
    loop {
        let (_, port): (String, u16) = redis::cmd("SENTINEL")
            .arg(&["GET-MASTER-ADDR-BY-NAME", "main"])
            .query_async(&mut connection)
            .await
            .unwrap();
        if port == replica.port() {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20), "{}", sentinel.log());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("failover: {:?}", since.elapsed());
}

#[tokio::test]
async fn a_cluster_serves_every_slot() {
    let since = Instant::now();
    let cluster = RedisCluster::builder().replicas(1).start().await.unwrap();
    println!("cluster: {:?}", since.elapsed());
    assert_eq!(cluster.nodes().len(), 6);
    let mut connection = cluster.nodes()[0].connect().await.unwrap();
    let moved = connection.set::<_, _, ()>("foo", 1).await.unwrap_err();
    let third = cluster.nodes()[2].port();
    assert_eq!(moved.redirect_node().unwrap().0, format!("127.0.0.1:{third}"));
    let mut connection = cluster.nodes()[2].connect().await.unwrap();
    connection.set::<_, _, ()>("foo", 1).await.unwrap();
}

#[tokio::test]
async fn tls_is_served_and_plain_text_is_not() {
    let tls = super::tls::Files::generate();
    let server = match Redis::builder().tls(&tls.certificate, &tls.key).start().await {
        Err(error) if error.is_without_tls() => return println!("skipped: {error}"),
        started => started.unwrap(),
    };
    assert!(server.url().starts_with("rediss://"));
    let plain = redis::Client::open(format!("redis://127.0.0.1:{}", server.port())).unwrap();
    assert!(plain.get_multiplexed_async_connection().await.is_err());
    let mut connection = server.connect().await.unwrap();
    connection.set::<_, _, ()>("a", 1).await.unwrap();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let root_cert = Some(std::fs::read(&tls.certificate).unwrap());
    let certificates = redis::TlsCertificates { client_tls: None, root_cert };
    let client = redis::Client::build_with_tls(server.url(), certificates).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    assert_eq!(connection.get::<_, i32>("a").await.unwrap(), 1);
}

#[tokio::test]
async fn a_bad_setting_fails_with_the_servers_own_words() {
    let start = Redis::builder().setting("maxmemory", "nonsense").start().await;
    let error = start.unwrap_err().to_string();
    assert!(error.contains("argument must be a memory value"), "{error}");

    let start = Redis::builder().setting("maxmemory", "1\nport 1").start().await;
    assert!(matches!(start, Err(Error::BadSetting(_))));

    let start = Redis::builder().bin_dir("/nowhere").start().await;
    assert!(matches!(start, Err(Error::Missing { program: "redis-server", .. })));
}
