//! A consumer that runs in a test.

use outflow_inbox::{
    Connect, Consumer, ConsumerOptions, Counts, Error, Handler, State, Status, Summary,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::PATIENCE;

pub(crate) fn start<H: Handler>(options: ConsumerOptions, connect: Connect, handler: H) -> Running {
    let consumer = Consumer::new(options.validate().unwrap(), connect, handler);
    let status = consumer.status();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    Running { status, shutdown, task }
}

pub(crate) struct Running {
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) shutdown: CancellationToken,
    task: JoinHandle<Result<Summary, Error>>,
}

impl Running {
    pub(crate) async fn until(&mut self, mut counts: impl FnMut(&Counts) -> bool) {
        self.until_status(|status| counts(&status.counts)).await;
    }

    pub(crate) async fn until_status(&mut self, test: impl FnMut(&Status) -> bool) {
        let waited = tokio::time::timeout(PATIENCE, self.status.wait_for(test)).await;
        let reached = waited.is_ok_and(|status| status.is_ok());
        assert!(reached, "it stands at {:?}", self.status.borrow().clone());
    }

    pub(crate) async fn until_waiting_for(&mut self, text: &str) {
        self.until_status(|status| {
            matches!(&status.state, State::Waiting { reason, .. } if reason.contains(text))
        })
        .await;
    }

    pub(crate) async fn stop(self) -> Summary {
        self.shutdown.cancel();
        self.end().await.unwrap()
    }

    pub(crate) async fn end(self) -> Result<Summary, Error> {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it does not end").unwrap()
    }

    /// Whether it has ended by itself.
    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Ends it without a stop, as a crash would.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}
