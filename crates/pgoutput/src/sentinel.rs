//! Notices that the server shuts down while the stream is not read.
//!
//! A caller that is behind stops the reading, and the server's ask to let it go lies behind data that nobody
//! reads: a fast shutdown would wait until the caller moves. So while reading stands still, an ordinary
//! connection stands by: a server that shuts down ends those first, or refuses them. It is opened after a
//! moment, held as long as the standstill lasts, and costs nothing otherwise.

use std::{
    future::Future,
    pin::Pin,
    time::{Duration, Instant},
};

use crate::{ConnectOptions, Error};

/// A standstill this long brings the sentinel.
const PATIENCE: Duration = Duration::from_secs(1);

/// And this long after a failed try, the next one.
const AGAIN: Duration = Duration::from_secs(5);

type Watch = Pin<Box<dyn Future<Output = Option<&'static str>> + Send>>;

pub(crate) struct Sentinel {
    options: ConnectOptions,
    /// When the next watch starts; `None` while reading goes on.
    due: Option<Instant>,
    watch: Option<Watch>,
}

impl Sentinel {
    pub(crate) fn new(mut options: ConnectOptions) -> Self {
        options.default_application_name("outflow");
        Self { options, due: None, watch: None }
    }

    /// Looks whether reading stands still. Returns when to look again.
    pub(crate) fn turn(&mut self, now: Instant, standstill: bool) -> Option<Instant> {
        if !standstill {
            self.due = None;
            self.watch = None;
            return None;
        }
        let due = *self.due.get_or_insert(now + PATIENCE);
        if self.watch.is_some() {
            return None;
        }
        if now >= due {
            self.watch = Some(Box::pin(watch(self.options.clone())));
            self.due = Some(now + AGAIN);
            return None;
        }
        Some(due)
    }

    /// Completes when the watch ended: with a reason if the server shuts down.
    pub(crate) async fn watch(&mut self) -> Option<&'static str> {
        let Some(watch) = &mut self.watch else { return std::future::pending().await };
        let result = watch.await;
        self.watch = None;
        result
    }
}

/// Ends when an ordinary connection cannot be had or was ended.
async fn watch(options: ConnectOptions) -> Option<&'static str> {
    let ended = match options.connect_sql().await {
        Ok(sql) => match sql.connection.await {
            Ok(Err(cause)) => cause.code().cloned(),
            Ok(Ok(())) | Err(_) => None,
        },
        Err(e @ (Error::Sql { .. } | Error::Server(_))) => e.sqlstate().cloned(),
        Err(e) => {
            tracing::debug!(error = %e, "no second connection to watch for a shutdown with");
            None
        }
    };
    match ended?.code() {
        "57P01" => Some("it ends all sessions"),
        "57P03" => Some("it takes no new sessions"),
        _ => None,
    }
}
