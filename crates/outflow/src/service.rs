//! What long-running commands share: their runtime, and how a signal stops them.

use anyhow::Context;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a process that was told twice (128 + SIGINT, as shells have it).
const IMPATIENT: i32 = 130;

/// For one busy loop (the connector) and for short commands: no hand-over between threads.
pub(crate) fn single_threaded() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("the runtime cannot start")
}

/// For work that runs beside other work.
pub(crate) fn multi_threaded() -> anyhow::Result<Runtime> {
    Builder::new_multi_thread().enable_all().build().context("the runtime cannot start")
}

/// For the consumer: half of the processors, and at most four of them. Where it shares a small machine with
/// its servers, threads that decode ahead only keep the database from the batch that it is to apply.
pub(crate) fn beside_servers() -> anyhow::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = (processors / 2).clamp(1, 4);
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(threads).enable_all().build().context("the runtime cannot start")
}

/// A token that SIGTERM or SIGINT cancels: stop reading, flush, save, confirm, close. A second signal
/// ends the process at once; what was in flight is delivered again at the next start.
///
/// Must be called inside a runtime.
pub(crate) fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    let listen = |kind| signal(kind).context("signals cannot be handled");
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let stop = CancellationToken::new();
    let token = stop.clone();
    tokio::spawn(async move {
        let name = either(&mut term, &mut int).await;
        tracing::info!("{name} received: stopping in order; a second signal stops at once");
        token.cancel();
        let name = either(&mut term, &mut int).await;
        tracing::warn!("{name} received again: stopping at once");
        std::process::exit(IMPATIENT);
    });
    Ok(stop)
}

async fn either(term: &mut Signal, int: &mut Signal) -> &'static str {
    tokio::select! {
        _ = term.recv() => "SIGTERM",
        _ = int.recv() => "SIGINT",
    }
}
