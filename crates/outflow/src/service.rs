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

/// Lets what shares the machine with this thread finish its turn: woken, the thread waits for a free processor
/// and does not take one away (sched(7), `SCHED_BATCH`). It is woken by the very servers that it works for:
/// interrupted by it, they would have to wait for a processor while another one is idle.
///
/// A policy that somebody has chosen is left as it is.
#[cfg(target_os = "linux")]
pub(crate) fn let_servers_go_first() {
    // another policy costs throughput on a crowded machine, and nothing else: no reason for a word
    if policy() == Some(ORDINARY) {
        let _ = scheduler::set_self_policy(scheduler::Policy::Batch, 0);
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn let_servers_go_first() {}

/// `SCHED_OTHER`.
#[cfg(target_os = "linux")]
const ORDINARY: u32 = 0;

/// The scheduling policy of this thread (proc(5), `/proc/pid/stat`, field 41).
#[cfg(target_os = "linux")]
fn policy() -> Option<u32> {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    // the second field is a name, in which anything may stand
    let (_, from_the_third) = stat.rsplit_once(')')?;
    from_the_third.split_whitespace().nth(41 - 3)?.parse().ok()
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

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use scheduler::{Policy, set_self_policy};

    const BATCH: u32 = 3;
    const IDLE: u32 = 5;

    /// A policy is that of a thread: the test's own ends with it.
    fn in_a_thread(policy_before: Policy) -> Option<u32> {
        let thread = std::thread::spawn(|| {
            set_self_policy(policy_before, 0).unwrap();
            let_servers_go_first();
            policy()
        });
        thread.join().unwrap()
    }

    #[test]
    fn an_ordinary_thread_lets_servers_go_first() {
        assert_eq!(in_a_thread(Policy::Other), Some(BATCH));
    }

    #[test]
    fn a_policy_that_somebody_has_chosen_stays() {
        assert_eq!(in_a_thread(Policy::Idle), Some(IDLE));
    }
}
