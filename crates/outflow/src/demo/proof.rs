//! The end of the demo: what the oracle found, for people and for scripts.

use std::fmt::{self, Write as _};
use std::time::Duration;

use indicatif::HumanCount;
use serde::Serialize;

use crate::oracle::verdict::{Fault, Verdict};
use crate::rig::workload::Counts;

/// The JSON form; the names are stable.
#[derive(Debug, Serialize)]
struct Json {
    committed: u64,
    entries: u64,
    inbox: u64,
    projected: u64,
    lost: u64,
    doubled: u64,
    reordered: u64,
    conflicts: u64,
    kills: u64,
    seconds: f64,
}

/// What the demo shows in the end.
pub(super) struct Proof {
    pub(super) verdict: Verdict,
    pub(super) kills: u64,
    /// From the first transaction until everything had settled.
    pub(super) took: Duration,
    /// How much of that the producers took.
    pub(super) produced_in: Duration,
    pub(super) producers: u32,
    pub(super) seed: u64,
}

impl Proof {
    /// One JSON object on one line.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        let verdict = &self.verdict;
        let json = Json {
            committed: verdict.committed,
            entries: verdict.entries,
            inbox: verdict.inbox,
            projected: verdict.projected,
            lost: verdict.lost(),
            doubled: verdict.doubled(),
            reordered: verdict.count(&[Fault::Reordered]),
            conflicts: verdict.count(&[Fault::Conflict]),
            kills: self.kills,
            seconds: (self.took.as_secs_f64() * 1000.0).round() / 1000.0,
        };
        Ok(serde_json::to_string(&json)? + "\n")
    }

    /// Figures that prove nothing.
    pub(super) fn figures(&self, counts: &Counts) -> String {
        let load = |count: &std::sync::atomic::AtomicU64| {
            HumanCount(count.load(std::sync::atomic::Ordering::Relaxed))
        };
        let mut text = String::new();
        let rate = |events: u64, time: Duration| {
            #[expect(clippy::cast_precision_loss, reason = "for people")]
            let rate = events as f64 / time.as_secs_f64().max(0.001);
            format!("{rate:.0} events/s")
        };
        let committed = self.verdict.committed;
        // writing to a String cannot fail
        let _ = writeln!(
            text,
            "  {} producers committed for {:.1} s ({}); all had arrived after {:.1} s ({})",
            self.producers,
            self.produced_in.as_secs_f64(),
            rate(committed, self.produced_in),
            self.took.as_secs_f64(),
            rate(committed, self.took),
        );
        let _ = writeln!(
            text,
            "  {} transactions and {} savepoints were rolled back, {} events had no outbox row",
            load(&counts.rolled_back),
            load(&counts.rolled_back_to_savepoint),
            load(&counts.messages),
        );
        let latency = &self.verdict.latency;
        let ms = |quantile: f64| millis(latency.value_at_quantile(quantile));
        let _ = writeln!(
            text,
            "  from the producer's commit to the consumer's: p50 {}, p95 {}, p99 {}, longest {} (with {} kills)",
            ms(0.5),
            ms(0.95),
            ms(0.99),
            millis(latency.max()),
            self.kills,
        );
        let _ = writeln!(text, "  the same kills again: --seed {}", self.seed);
        text
    }
}

fn millis(micros: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let millis = micros as f64 / 1000.0;
    if millis < 10.0 { format!("{millis:.1} ms") } else { format!("{millis:.0} ms") }
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = &self.verdict;
        let mut line = |name: &str, count: u64, wanted: u64| {
            let mark = if count == wanted { "ok" } else { "WRONG" };
            writeln!(f, "  {name:<38} {:>11}  {mark}", HumanCount(count).to_string())
        };
        let committed = verdict.committed;
        line("events committed by the producers", committed, committed)?;
        line("entries in the stream", verdict.entries, committed)?;
        line("rows in the inbox", verdict.inbox, committed)?;
        line("events in the projection", verdict.projected, committed)?;
        line("lost", verdict.lost(), 0)?;
        line("doubled", verdict.doubled(), 0)?;
        line("reordered within an aggregate", verdict.count(&[Fault::Reordered]), 0)?;
        line("altered on the way", verdict.count(&[Fault::Altered]), 0)?;
        line(
            "conflicts and dead letters",
            verdict.count(&[Fault::Conflict, Fault::DeadLetter]),
            0,
        )?;
        line("rolled back, but leaked", verdict.count(&[Fault::Leaked]), 0)?;
        line("wrong rows in the projection", verdict.count(&[Fault::Projection]), 0)
    }
}
