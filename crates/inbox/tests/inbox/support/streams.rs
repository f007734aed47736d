//! What tests do to their streams, and what stands there.

use std::time::Duration;

use super::{Bed, PATIENCE};

impl Bed {
    pub(crate) async fn add(
        &mut self,
        event_id: &str,
        aggregate_id: &str,
        payload: &[u8],
    ) -> String {
        let stream = self.stream.clone();
        self.add_to(&stream, event_id, aggregate_id, payload).await
    }

    pub(crate) async fn add_to(
        &mut self,
        stream: &str,
        event_id: &str,
        aggregate_id: &str,
        payload: &[u8],
    ) -> String {
        redis::cmd("XADD")
            .arg(stream)
            .arg("*")
            .arg(&[("event_id", event_id), ("aggregate_type", "order")])
            .arg(&[("aggregate_id", aggregate_id), ("event_type", "T")])
            .arg("payload")
            .arg(payload)
            .query_async(&mut self.redis)
            .await
            .unwrap()
    }

    /// Events `e1 ..` with payloads `{"v": 1} ..`, over `aggregates` aggregates, in one round trip.
    pub(crate) async fn add_many(&mut self, range: std::ops::RangeInclusive<u64>, aggregates: u64) {
        let mut pipe = redis::pipe();
        for n in range {
            pipe.cmd("XADD")
                .arg(&self.stream)
                .arg("*")
                .arg(&[("event_id", format!("e{n}")), ("aggregate_type", "order".to_owned())])
                .arg(&[("aggregate_id", (n % aggregates).to_string())])
                .arg(&[("event_type", "T".to_owned()), ("payload", format!(r#"{{"v": {n}}}"#))])
                .ignore();
        }
        pipe.exec_async(&mut self.redis).await.unwrap();
    }

    pub(crate) async fn pending(&mut self) -> u64 {
        let summary: (u64, redis::Value, redis::Value, redis::Value) = redis::cmd("XPENDING")
            .arg(&self.stream)
            .arg("accounting")
            .query_async(&mut self.redis)
            .await
            .unwrap();
        summary.0
    }

    /// Waits until so many entries are pending.
    pub(crate) async fn until_pending(&mut self, entries: u64) {
        let poll = async {
            while self.pending().await != entries {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let reached = tokio::time::timeout(PATIENCE, poll).await;
        assert!(reached.is_ok(), "{entries} pending entries");
    }

    /// Entries that the group has not delivered; none after `XGROUP SETID` made that unknown.
    pub(crate) async fn lag(&mut self) -> i64 {
        let groups: redis::streams::StreamInfoGroupsReply = redis::cmd("XINFO")
            .arg("GROUPS")
            .arg(&self.stream)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let last: redis::streams::StreamInfoStreamReply = redis::cmd("XINFO")
            .arg("STREAM")
            .arg(&self.stream)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        let behind = |group: &redis::streams::StreamInfoGroup| {
            i64::from(group.last_delivered_id != last.last_generated_id)
        };
        groups.groups.iter().map(behind).sum()
    }

    /// Reads as `worker` and never acknowledges, as a worker does that dies.
    pub(crate) async fn read_and_die(&mut self, worker: &str, count: usize) {
        let _: redis::Value = redis::cmd("XREADGROUP")
            .arg("GROUP")
            .arg("accounting")
            .arg(worker)
            .arg("COUNT")
            .arg(count)
            .arg("STREAMS")
            .arg(&self.stream)
            .arg(">")
            .query_async(&mut self.redis)
            .await
            .unwrap();
    }

    pub(crate) async fn redis_command(&mut self, command: &[&str]) -> redis::Value {
        let mut cmd = redis::cmd(command[0]);
        for argument in &command[1..] {
            cmd.arg(argument);
        }
        cmd.query_async(&mut self.redis).await.unwrap()
    }
}
