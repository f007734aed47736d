//! Peak memory of the connector (VmHWM) where it would grow without bounds if anything did:
//! - one transaction of millions of rows, which PostgreSQL hands out as fast as it is read;
//! - Redis stands still (SIGSTOP) while a backlog waits, once the connector is at full speed.
//!
//! Afterwards the stream must hold every event exactly once.

use std::time::{Duration, Instant};

use anyhow::ensure;

use super::backlog::Backlog;
use super::broker::Broker;
use super::drain::{MEMORY_TARGET, arrive};
use super::figure::{Figure, Unit};
use super::process::{Program, peak_mib};
use super::progress::Progress;
use super::stage::Stage;

pub(super) const SCENARIO: &str = "memory";
/// Shape of the backlog that waits for Redis.
const ROWS: u64 = 100;
/// Events that no connector publishes before Redis is stopped.
const LEAST: u64 = 50_000;

pub(super) async fn run(stage: &Stage, progress: &Progress) -> anyhow::Result<Vec<Figure>> {
    let mut broker = stage.broker(false).await?;
    let mut figures = Vec::new();

    let rows = stage.options.huge_transaction;
    let backlog = Backlog::write(stage, rows, rows, progress).await?;
    progress.step(format!("memory, one transaction of {rows} rows"), rows);
    let peak = huge_transaction(stage, &backlog, &mut broker, progress).await?;
    backlog.discard(stage).await?;
    figures.push(figure(format!("one transaction of {rows} rows"), peak));

    let stall = stage.options.stall();
    let events = stage.options.events.max(LEAST);
    let backlog = Backlog::write(stage, events, ROWS, progress).await?;
    let case = format!("Redis stopped for {} s", stall.as_secs());
    progress.step(format!("memory, {case}"), backlog.events);
    let peak = stalled_broker(stage, &backlog, &mut broker, progress).await?;
    backlog.discard(stage).await?;
    figures.push(figure(case, peak));
    Ok(figures)
}

fn figure(case: String, peak: f64) -> Figure {
    let name = "peak memory of the connector";
    Figure::new(SCENARIO, case, name, Unit::Memory, vec![peak]).target(Some(MEMORY_TARGET))
}

async fn huge_transaction(
    stage: &Stage,
    backlog: &Backlog,
    broker: &mut Broker,
    progress: &Progress,
) -> anyhow::Result<f64> {
    broker.clear().await?;
    let slot = backlog.slot(stage).await?;
    let mut connector = stage.connector(&slot, broker)?;
    stage.walsender(&slot, &mut connector).await?;
    finish(stage, backlog, broker, connector, &slot, progress).await
}

async fn stalled_broker(
    stage: &Stage,
    backlog: &Backlog,
    broker: &mut Broker,
    progress: &Progress,
) -> anyhow::Result<f64> {
    broker.clear().await?;
    let slot = backlog.slot(stage).await?;
    let mut connector = stage.connector(&slot, broker)?;
    stage.walsender(&slot, &mut connector).await?;
    arrive(broker, &mut connector, backlog.events / 20, progress).await?;
    let length = broker.length().await?;
    ensure!(length < backlog.events, "Redis was not stopped in time: raise --events");
    broker.own()?.sigstop()?;
    let since = Instant::now();
    while since.elapsed() < stage.options.stall() {
        connector.must_run()?;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    broker.own()?.sigcont()?;
    finish(stage, backlog, broker, connector, &slot, progress).await
}

/// Waits for the rest, checks the result, stops the connector; its peak memory in MiB.
async fn finish(
    stage: &Stage,
    backlog: &Backlog,
    broker: &mut Broker,
    mut connector: Program,
    slot: &str,
    progress: &Progress,
) -> anyhow::Result<f64> {
    arrive(broker, &mut connector, backlog.events, progress).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let length = broker.length().await?;
    ensure!(
        length == backlog.events,
        "the stream holds {length} entries for {} events",
        backlog.events
    );
    let peak = peak_mib(connector.pid())?;
    connector.stop().await?;
    stage.drop_slot(slot).await?;
    Ok(peak)
}
