//! What the lab does not do, and what it says instead.

use std::fs::{self, File};

use outflow_sandbox::Redis;
use rustix::fs::FlockOperation;
use tempfile::tempdir;

use crate::{Ran, World, outflow_lab};

#[tokio::test]
async fn a_step_that_comes_too_early_names_the_former_one() {
    let world = World::new().await;
    let steps = [
        "dual-write",
        "place-order",
        "relay",
        "order-check",
        "relay-crash",
        "consume",
        "report",
        "check",
        "stop",
        "clean",
    ];
    for step in steps {
        let error = world.run(&[step]).failed(3);
        assert!(error.contains("run `outflow lab init --dir "), "{step}: {error}");
    }
    assert!(!world.dir().exists());
    world.run(&["init"]).ok();
    for (step, former) in [
        ("relay", "place-order"),
        ("order-check", "relay"),
        ("relay-crash", "place-order"),
        ("consume", "relay"),
        ("report", "consume"),
    ] {
        let error = world.run(&[step]).failed(3);
        assert!(error.contains(&format!("run `outflow lab {former} --dir ")), "{step}: {error}");
    }
    fs::remove_file(world.dir().join("app.db")).unwrap();
    let error = world.run(&["place-order"]).failed(3);
    assert!(error.contains("there is no ") && error.contains("app.db"), "{error}");
}

#[tokio::test]
async fn a_folder_that_is_somebody_else_s_is_left_as_it_is() {
    let world = World::new().await;
    fs::create_dir(world.dir()).unwrap();
    fs::write(world.dir().join("thesis.txt"), "mine").unwrap();
    for step in ["init", "all", "place-order", "clean"] {
        let error = world.run(&[step]).failed(3);
        assert!(error.contains("is not a lab"), "{step}: {error}");
    }
    assert_eq!(world.file("thesis.txt"), "mine");
    assert_eq!(fs::read_dir(world.dir()).unwrap().count(), 1);
    assert_eq!(world.redis::<usize>(&["DBSIZE"]).await, 0);

    fs::write(world.dir().join("lab.json"), r#"{"name": "chemistry"}"#).unwrap();
    for step in ["init", "place-order", "clean"] {
        let error = world.run(&[step]).failed(3);
        assert!(error.contains("is not the mark of a lab"), "{step}: {error}");
    }
    assert_eq!(fs::read_dir(world.dir()).unwrap().count(), 2);
}

#[tokio::test]
async fn an_empty_folder_is_taken() {
    let world = World::new().await;
    fs::create_dir(world.dir()).unwrap();
    world.run(&["init"]).ok();
}

#[tokio::test]
async fn two_steps_at_once_are_refused() {
    let world = World::new().await;
    world.run(&["init"]).ok();
    let folder = File::open(world.dir()).unwrap();
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).unwrap();
    let error = world.run(&["place-order"]).failed(3);
    assert!(error.contains("another step is at work"), "{error}");
    drop(folder);
    world.run(&["place-order"]).ok();
}

#[tokio::test]
async fn a_redis_that_is_not_reached_is_named_with_the_remedy() {
    let world = World::new().await;
    let nobody = "redis://:topsecret@127.0.0.1:1/0";
    let run = |step: &str| -> Ran {
        outflow_lab(&world.dir()).args([step, "--redis", nobody]).output().unwrap().into()
    };
    let error = run("init").failed(1);
    for text in ["redis://127.0.0.1:1/0 cannot be reached", "start it", "--redis"] {
        assert!(error.contains(text), "{error}");
    }
    assert!(!error.contains("topsecret"), "{error}");
    // tables do not need a Redis, nor do orders; whatever does says so
    outflow_lab(&world.dir()).arg("place-order").output().unwrap();
    for step in ["dual-write", "relay", "relay-crash", "check"] {
        let error = run(step).failed(1);
        assert!(error.contains("cannot be reached"), "{step}: {error}");
    }
    // and another one may still be chosen
    world.run(&["relay"]).ok();

    world.redis.kill().await.unwrap();
    let error: Ran = outflow_lab(&world.dir()).arg("consume").output().unwrap().into();
    assert!(error.failed(1).contains("cannot be reached"));
    world.redis.start_again().await.unwrap();
}

#[test]
fn a_url_that_is_none_ends_with_2_and_shows_no_secret() {
    let folder = tempdir().unwrap();
    for url in ["localhost:6379", "http://:topsecret@h", "redis://:topsecret@h/notanumber"] {
        let ran: Ran = outflow_lab(&folder.path().join("lab"))
            .args(["init", "--redis", url])
            .output()
            .unwrap()
            .into();
        let error = ran.failed(2);
        assert!(error.contains("--redis") && error.contains("redis://127.0.0.1"), "{error}");
        assert!(!error.contains("topsecret"), "{error}");
    }
}

#[tokio::test]
async fn keys_of_somebody_else_are_left_alone() {
    let world = World::new().await;
    let _: u64 = world.redis(&["RPUSH", "outbox.events", "theirs"]).await;
    let error = world.run(&["init"]).failed(3);
    assert!(error.contains("keys that are not of this lab") && error.contains(" DEL "), "{error}");
    assert_eq!(
        world.redis::<Vec<String>>(&["LRANGE", "outbox.events", "0", "-1"]).await,
        ["theirs"]
    );
    let _: u64 = world.redis(&["DEL", "outbox.events"]).await;
    world.run(&["all"]).ok();

    let second = tempdir().unwrap();
    let ran: Ran = outflow_lab(&second.path().join("lab"))
        .args(["all", "--redis", &world.redis.url()])
        .output()
        .unwrap()
        .into();
    let error = ran.failed(3);
    assert!(error.contains(&format!("holds the lab of {}", world.dir().display())), "{error}");
    assert_eq!(world.off(), [""; 0]);
    // another database of the same server is free
    let url = format!("{}/5", world.redis.url());
    let mut other = outflow_lab(&second.path().join("lab"));
    let ran: Ran = other.args(["all", "--redis", &url]).output().unwrap().into();
    ran.ok();
}

#[tokio::test]
async fn a_lab_stays_with_its_redis() {
    let world = World::finished().await;
    let without: Ran = outflow_lab(&world.dir()).arg("check").output().unwrap().into();
    without.ok();
    let url = format!("{}/3", world.redis.url());
    let other: Ran =
        outflow_lab(&world.dir()).args(["check", "--redis", &url]).output().unwrap().into();
    let error = other.failed(3);
    assert!(
        error.contains("uses redis://127.0.0.1:") && error.contains("outflow lab clean"),
        "{error}"
    );
}

#[tokio::test]
async fn a_password_is_used_and_not_kept() {
    let redis = Redis::builder().password("topsecret").start().await.unwrap();
    let folder = tempdir().unwrap();
    let dir = folder.path().join("lab");
    let all: Ran =
        outflow_lab(&dir).arg("all").env("OUTFLOW_LAB_REDIS", redis.url()).output().unwrap().into();
    let told = all.ok();
    assert!(told.contains("redis-cli --askpass -u redis://127.0.0.1:"), "{told}");
    assert!(!told.contains("topsecret"), "{told}");
    for entry in fs::read_dir(&dir).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains("topsecret"));
    }
    let without: Ran = outflow_lab(&dir).arg("check").output().unwrap().into();
    assert!(without.failed(3).contains("give the URL again"));
    let with: Ran =
        outflow_lab(&dir).args(["check", "--redis", &redis.url()]).output().unwrap().into();
    with.ok();
}

#[tokio::test]
async fn clean_removes_what_is_the_lab_s_and_nothing_else() {
    let world = World::finished().await;
    let _: String = world.redis(&["SET", "theirs", "1"]).await;
    fs::write(world.dir().join("notes.txt"), "mine").unwrap();
    let told = world.run(&["clean"]).ok();
    assert!(told.contains("holds others, which stay"), "{told}");
    assert_eq!(world.file("notes.txt"), "mine");
    assert_eq!(fs::read_dir(world.dir()).unwrap().count(), 1);
    assert_eq!(world.redis::<Vec<String>>(&["KEYS", "*"]).await, ["theirs"]);
    fs::remove_file(world.dir().join("notes.txt")).unwrap();
    world.run(&["all"]).ok();
    world.run(&["clean"]).ok();
    assert!(!world.dir().exists());
}
