//! Producers that work while something is broken.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::{PATIENCE, Relay, SHOP, Scene};
use crate::oracle::check::Record;
use crate::rig::workload::{self, Counts, Goal, Plan};

impl Scene {
    /// Starts two producers that commit about `rate` events a second until the load ends. They
    /// survive the loss of their server. Where a log is read, some events are messages. `name` begins
    /// the ids of journal lines: another one for every load of a scene.
    pub(in crate::drill) fn load(&self, name: &'static str, rate: u32, seed: u64) -> Load {
        self.produce(name, rate, seed, self.kind == Relay::Connector)
    }

    /// The same, with rows for all events: none of them is a message in the log.
    pub(in crate::drill) fn load_rows(&self, name: &'static str, rate: u32, seed: u64) -> Load {
        self.produce(name, rate, seed, false)
    }

    fn produce(&self, name: &'static str, rate: u32, seed: u64, messages: bool) -> Load {
        let (stop, counts) = (CancellationToken::new(), Arc::<Counts>::default());
        let plan = Plan {
            name,
            producers: 2,
            goal: Goal::Until(stop.clone()),
            rate: Some(f64::from(rate)),
            seed,
            messages,
            survives: true,
        };
        let connect = self.postgres.connections(SHOP);
        let task = tokio::spawn(workload::run(plan, connect, Arc::clone(&counts)));
        let task = AbortOnDropHandle::new(task);
        Load { stop, counts, task }
    }
}

/// Producers at work; dropping it ends them.
pub(in crate::drill) struct Load {
    stop: CancellationToken,
    counts: Arc<Counts>,
    task: AbortOnDropHandle<anyhow::Result<Record>>,
}

impl Load {
    /// Waits until this many further events are committed.
    pub(in crate::drill) async fn commits(&self, events: u64) -> anyhow::Result<()> {
        let committed = || self.counts.committed.load(Ordering::Relaxed);
        let wanted = committed() + events;
        let enough = async {
            while committed() < wanted && !self.task.is_finished() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, enough).await.context("the producers stand still")
    }

    /// Ends it; `scene` takes over what the producers know.
    pub(in crate::drill) async fn end(self, scene: &mut Scene) -> anyhow::Result<()> {
        self.stop.cancel();
        let record = tokio::time::timeout(PATIENCE, self.task).await;
        let record = record.context("the producers do not end")???;
        scene.record.committed.extend(record.committed);
        scene.record.rolled_back.extend(record.rolled_back);
        Ok(())
    }
}
