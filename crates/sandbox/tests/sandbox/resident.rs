//! The Redis that outlives the processes that use it.

use std::fs::{self, File};
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use outflow_sandbox::{Error, Found, ResidentRedis};
use redis::AsyncCommands;
use tempfile::{TempDir, tempdir};

const SOON: Duration = Duration::from_secs(15);

fn resident() -> (TempDir, ResidentRedis) {
    let folder = tempdir().unwrap();
    let server = ResidentRedis::new(folder.path().join("redis"), 60);
    (folder, server)
}

async fn until_ended(server: &ResidentRedis, pid: u32) {
    let since = Instant::now();
    loop {
        let output =
            Command::new("ps").args(["-o", "stat=", "-p", &pid.to_string()]).output().unwrap();
        let state = String::from_utf8(output.stdout).unwrap();
        if state.trim().is_empty() || state.starts_with('Z') {
            assert!(server.connect().await.is_err());
            return;
        }
        assert!(since.elapsed() < SOON, "pid {pid} still runs");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn it_is_found_and_comes_back_with_its_data() {
    let (_folder, server) = resident();
    assert_eq!(server.start().await.unwrap(), Found::Started);
    let pid = server.pid().unwrap();
    let mut connection = server.connect().await.unwrap();
    let _: () = connection.set("a", 1).await.unwrap();
    assert_eq!(server.start().await.unwrap(), Found::Running);
    assert_eq!(server.pid(), Some(pid));

    assert!(server.stop(SOON).await.unwrap());
    until_ended(&server, pid).await;
    assert!(!server.stop(SOON).await.unwrap());

    assert_eq!(server.start().await.unwrap(), Found::Started);
    let pid = server.pid().unwrap();
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap().success());
    until_ended(&server, pid).await;
    assert_eq!(server.start().await.unwrap(), Found::Started);
    let mut connection = server.connect().await.unwrap();
    assert_eq!(connection.get::<_, i32>("a").await.unwrap(), 1);
    assert!(server.stop(SOON).await.unwrap());
}

#[tokio::test]
async fn two_that_start_it_at_once_share_it() {
    let (_folder, server) = resident();
    let (one, other) = tokio::join!(server.start(), server.start());
    let mut found = [one.unwrap(), other.unwrap()];
    found.sort_by_key(|found| *found == Found::Started);
    assert_eq!(found, [Found::Running, Found::Started]);
    assert!(server.stop(SOON).await.unwrap());
}

#[tokio::test]
async fn it_ends_when_nobody_uses_it() {
    let (folder, server) = resident();
    server.start().await.unwrap();
    let pid = server.pid().unwrap();
    let used = File::options().append(true).open(folder.path().join("redis/redis.conf")).unwrap();
    used.set_modified(SystemTime::now() - Duration::from_secs(2 * 3600)).unwrap();
    until_ended(&server, pid).await;
}

#[tokio::test]
async fn it_ends_with_its_folder() {
    let (folder, server) = resident();
    server.start().await.unwrap();
    let pid = server.pid().unwrap();
    fs::remove_dir_all(folder.path()).unwrap();
    until_ended(&server, pid).await;
}

#[tokio::test]
async fn nobody_else_may_enter() {
    use std::os::unix::fs::PermissionsExt;
    let (folder, server) = resident();
    server.start().await.unwrap();
    let mode = fs::metadata(folder.path().join("redis")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let mode = fs::metadata(server.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    assert!(server.stop(SOON).await.unwrap());
}

#[tokio::test]
async fn a_folder_too_deep_and_a_configuration_that_fails_are_named() {
    let folder = tempdir().unwrap();
    let deep = ResidentRedis::new(folder.path().join("d".repeat(100)), 60);
    assert!(matches!(deep.start().await, Err(Error::LongSocketPath { .. })));

    let (folder, server) = resident();
    fs::create_dir(folder.path().join("redis")).unwrap();
    // the append-only files cannot be made
    fs::write(folder.path().join("redis/appendonlydir"), "").unwrap();
    fs::create_dir(folder.path().join("redis/appendonly.aof")).unwrap();
    let error = server.start().await.unwrap_err();
    assert!(matches!(error, Error::Start { .. }), "{error}");
    assert!(error.to_string().contains("append"), "{error}");
}
