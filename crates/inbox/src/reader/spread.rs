//! Reading streams of several slots of a cluster.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use outflow_broker::Connection;

use super::fence::Answer;
use super::{End, Reader};

/// Pauses between two rounds that find nothing: doubling, so that an idle consumer costs little and
/// a busy one waits for nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

impl Reader {
    /// What is new in `slots`, the streams of one slot each, for at most `longest`.
    ///
    /// One command cannot wait for streams of several slots (Redis documentation, "Redis cluster
    /// specification", "Implemented subset"), and commands that wait would hold up each other on
    /// the connection to a node: so all slots are asked at once, and again after a pause.
    pub(super) async fn poll(
        &self,
        redis: &Connection,
        slots: &[Vec<usize>],
        longest: Duration,
    ) -> Result<Answer, End> {
        let until = Instant::now() + longest;
        let mut pause = FIRST_PAUSE;
        loop {
            let asked = slots.iter().map(|streams| self.ask(redis.clone(), streams));
            let mut all = Answer::default();
            for answer in join_all(asked).await {
                let Answer { read, elsewhere } = answer?;
                all.read.extend(read);
                all.elsewhere.extend(elsewhere);
            }
            fail::fail_point!("inbox::after_read");
            let is_something = !all.read.is_empty() || !all.elsewhere.is_empty();
            if is_something || Instant::now() >= until || self.stop.is_cancelled() {
                return Ok(all);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.stop.cancelled() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn ask(&self, mut redis: Connection, streams: &[usize]) -> Result<Answer, End> {
        let replies = redis.replies(&self.ask_for(streams, None)).await?;
        self.answer(streams, &replies).await
    }
}
