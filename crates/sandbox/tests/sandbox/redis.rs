//! The Redis server of the sandbox.

use std::time::{Duration, Instant};

use outflow_sandbox::{Fsync, Redis};
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
