//! A polling relay in a process of its own, to be killed: this test binary again, with one ignored
//! test that runs until the process ends.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use outflow_relay::status::Reporter;
use tokio_util::sync::CancellationToken;

use crate::support::{World, config};
use crate::world::polling;

const SOURCE: &str = "POLLING_CHILD_SOURCE";
const REDIS: &str = "POLLING_CHILD_REDIS";
const RELAY: &str = "POLLING_CHILD_RELAY";
const LEASE: &str = "POLLING_CHILD_LEASE_MS";

/// A process that is killed at the end of the test, or before.
pub struct Relay(Child);

impl Relay {
    /// Starts one with a batch of 50; `failpoints` as the variable FAILPOINTS takes them.
    pub fn start(world: &World, name: &str, lease: Duration, failpoints: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child::relay", "--ignored", "--nocapture"])
            .env(SOURCE, &world.database.url)
            .env(REDIS, world.redis.url())
            .env(RELAY, name)
            .env(LEASE, lease.as_millis().to_string())
            .env("FAILPOINTS", failpoints)
            .env_remove("NEXTEST_EXECUTION_MODE")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // it may have been killed before
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
#[ignore = "the body of a child process of the other tests"]
async fn relay() {
    let Ok(source) = std::env::var(SOURCE) else { return };
    let variable = |name: &str| std::env::var(name).unwrap();
    let _scenario = fail::FailScenario::setup();
    let mut config = config(&source, &variable(REDIS));
    config.sink.batch_entries = 50;
    let mut polling = polling(&variable(RELAY));
    polling.lease = Duration::from_millis(variable(LEASE).parse().unwrap());
    let forever = CancellationToken::new();
    outflow_relay::polling::run(config, polling, Reporter::new(), forever).await.unwrap();
}
