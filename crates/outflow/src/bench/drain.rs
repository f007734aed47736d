//! A backlog from PostgreSQL into Redis, against `pg_recvlogical` that writes it to `/dev/null`.
//!
//! Both read the same events, from the same place in the log, with the same output plugin and the
//! same protocol. The connector does more: it takes the messages apart, writes an entry for each
//! event, waits for Redis, and stores its offset.
//!
//! A round is three runs: one competitor between two runs of the other, who changes from round to
//! round. What counts is the mean of the outer two, so that a machine that becomes slower or faster
//! in the middle of a round does so for both.
//!
//! What is timed, for both alike:
//! - from the first sight of a walsender at work for the slot, that is, from START_REPLICATION on.
//!   Starting the program, logging in and checking the servers are left out; setting up the decoder
//!   is not, which is the server's work for either.
//! - to the first sight of the last entry in the stream, or of the end of `pg_recvlogical`, which
//!   ends at the end of the last transaction (`--endpos`). Its way out costs a few milliseconds, as
//!   waiting for Redis's last reply costs the connector.
//!
//! One look every 5 ms to begin with, then every 10 ms: `XLEN` on a connection of its own for the
//! connector, a file in `/proc` for `pg_recvlogical`. The costs of looking are the connector's.
//!
//! CPU time is that between these two moments. A round counts only if the stream then holds exactly
//! the events of the backlog, and the connector stops in order.

use std::time::Duration;

use anyhow::ensure;
use tokio::process::Command;

use super::backlog::Backlog;
use super::broker::Broker;
use super::figure::{Figure, Target, Unit};
use super::process::{Patience, Program, cpu, peak_mib};
use super::progress::Progress;
use super::stage::Stage;

pub(super) const SCENARIO: &str = "drain";
/// How often the end is looked for.
const LOOK: Duration = Duration::from_millis(10);
/// For a batch that comes twice to show up.
const SETTLE: Duration = Duration::from_millis(200);
/// Most memory of a connector, in MiB.
pub(super) const MEMORY_TARGET: Target = Target::AtMost(64.0);

/// What one competitor did.
#[derive(Debug, Default, Clone, Copy)]
struct Run {
    /// Events a second.
    rate: f64,
    /// CPU time an event in microseconds: of the reader, the walsender and Redis.
    reader: f64,
    walsender: f64,
    redis: f64,
    /// The connector's peak memory in MiB.
    peak: f64,
}

pub(super) async fn run(stage: &Stage, progress: &Progress) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for &rows in &stage.options.rows_per_transaction {
        let backlog = Backlog::write(stage, stage.options.events, rows, progress).await?;
        for &aof in &stage.options.aof {
            let mut broker = stage.broker(aof).await?;
            let case = case(stage, rows, aof);
            let rounds = compare(stage, &backlog, &mut broker, &case, progress).await?;
            figures.extend(summary(stage, rows, &case, &rounds));
        }
        backlog.discard(stage).await?;
    }
    Ok(figures)
}

fn case(stage: &Stage, rows: u64, aof: bool) -> String {
    format!(
        "{rows}-row transactions, {}{}",
        if aof { "AOF everysec" } else { "no persistence" },
        if stage.options.unix_socket { ", Unix socket" } else { "" }
    )
}

/// What connector and rival did in each round.
async fn compare(
    stage: &Stage,
    backlog: &Backlog,
    broker: &mut Broker,
    case: &str,
    progress: &Progress,
) -> anyhow::Result<Vec<(Run, Run)>> {
    let mut rounds = Vec::new();
    for round in 1..=stage.options.rounds {
        let title = |who| format!("drain, {case}, round {round}: {who}");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let connector_is_outside = round % 2 == 1;
        for connector in [connector_is_outside, !connector_is_outside, connector_is_outside] {
            if connector {
                progress.step(title("connector"), backlog.events);
                ours.push(connector_run(stage, backlog, broker, progress).await?);
            } else {
                progress.step(title("pg_recvlogical"), backlog.events);
                theirs.push(rival_run(stage, backlog).await?);
            }
        }
        let pair = (Run::mean(&ours), Run::mean(&theirs));
        progress.say(&format!(
            "  {} against {}: {:.2}",
            Unit::Rate.show(pair.0.rate),
            Unit::Rate.show(pair.1.rate),
            pair.0.rate / pair.1.rate
        ));
        rounds.push(pair);
    }
    Ok(rounds)
}

async fn connector_run(
    stage: &Stage,
    backlog: &Backlog,
    broker: &mut Broker,
    progress: &Progress,
) -> anyhow::Result<Run> {
    broker.clear().await?;
    let redis = broker.pid()?;
    let slot = backlog.slot(stage).await?;
    let mut connector = stage.connector(&slot, broker)?;
    let walsender = stage.walsender(&slot, &mut connector).await?;
    let processes = [connector.pid(), walsender.pid, redis];
    let before = cpu_of(processes)?;
    arrive(broker, &mut connector, backlog.events, progress).await?;
    let took = walsender.since.elapsed();
    let after = cpu_of(processes)?;
    let peak = peak_mib(connector.pid())?;
    tokio::time::sleep(SETTLE).await;
    let length = broker.length().await?;
    ensure!(
        length == backlog.events,
        "the stream holds {length} entries for {} events: figures of a wrong result mean nothing",
        backlog.events
    );
    connector.stop().await?;
    stage.drop_slot(&slot).await?;
    Ok(Run { peak, ..Run::new(backlog.events, took, before, after) })
}

/// Waits until the stream holds `events` entries.
pub(super) async fn arrive(
    broker: &mut Broker,
    connector: &mut Program,
    events: u64,
    progress: &Progress,
) -> anyhow::Result<()> {
    let mut patience = Patience::new();
    loop {
        let length = broker.length().await?;
        progress.at(length);
        if length >= events {
            return Ok(());
        }
        connector.must_run()?;
        patience.watch(length).map_err(|error| connector.failure(&error.to_string()))?;
        tokio::time::sleep(LOOK).await;
    }
}

async fn rival_run(stage: &Stage, backlog: &Backlog) -> anyhow::Result<Run> {
    let slot = backlog.slot(stage).await?;
    let mut command = Command::new(stage.own()?.tool("pg_recvlogical"));
    command.args(["--start", "--no-loop", "--file=/dev/null", "--fsync-interval=0"]);
    command.args(["-o", "proto_version=1", "-o", "publication_names=outflow"]);
    command.args(["--dbname", &stage.url(), "--slot", &slot, "--endpos", &backlog.end_lsn]);
    let log = stage.file(&format!("{slot}.log"));
    let mut program = Program::start("pg_recvlogical", command, log)?;
    let walsender = stage.walsender(&slot, &mut program).await?;
    let (reader, sender) = (program.pid(), walsender.pid);
    let before = [cpu(reader)?, cpu(sender)?, Duration::ZERO];
    let mut after = before;
    let took = loop {
        // the last look finds pg_recvlogical's whole time, and of the walsender's all but 10 ms
        after = [cpu(reader).unwrap_or(after[0]), cpu(sender).unwrap_or(after[1]), after[2]];
        if program.ended()?.is_some() {
            break walsender.since.elapsed();
        }
        tokio::time::sleep(LOOK).await;
    };
    program.finish().await?;
    stage.drop_slot(&slot).await?;
    Ok(Run::new(backlog.events, took, before, after))
}

fn cpu_of(processes: [u32; 3]) -> anyhow::Result<[Duration; 3]> {
    let [reader, walsender, redis] = processes;
    Ok([cpu(reader)?, cpu(walsender)?, cpu(redis)?])
}

impl Run {
    fn new(events: u64, took: Duration, before: [Duration; 3], after: [Duration; 3]) -> Self {
        let events = events as f64;
        let [reader, walsender, redis] = std::array::from_fn(|index| {
            let at = |times: [Duration; 3]| times.get(index).copied().unwrap_or_default();
            at(after).saturating_sub(at(before)).as_secs_f64() * 1e6 / events
        });
        Self { rate: events / took.as_secs_f64(), reader, walsender, redis, peak: 0.0 }
    }

    /// Several runs as if they were one: the rate is that of all their events over all their time. Of memory the
    /// most.
    fn mean(runs: &[Self]) -> Self {
        let mean =
            |value: fn(&Self) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
        Self {
            rate: 1.0 / mean(|run| 1.0 / run.rate),
            reader: mean(|run| run.reader),
            walsender: mean(|run| run.walsender),
            redis: mean(|run| run.redis),
            peak: runs.iter().map(|run| run.peak).fold(0.0, f64::max),
        }
    }
}

/// What the rounds of one case come to.
fn summary(stage: &Stage, rows: u64, case: &str, rounds: &[(Run, Run)]) -> Vec<Figure> {
    let tcp = !stage.options.unix_socket;
    let ratio = match rows {
        1 if tcp => Some(Target::AtLeast(1.0)),
        100 if tcp => Some(Target::AtLeast(1.1)),
        _ => None,
    };
    let cpu = (rows == 100).then_some(Target::AtMost(5.0));
    let ours = |value: fn(&Run) -> f64| rounds.iter().map(|(ours, _)| value(ours)).collect();
    let theirs = |value: fn(&Run) -> f64| rounds.iter().map(|(_, theirs)| value(theirs)).collect();
    let ratios = rounds.iter().map(|(ours, theirs)| ours.rate / theirs.rate).collect();
    let figure = |name, unit, rounds| Figure::new(SCENARIO, case, name, unit, rounds);
    vec![
        figure("connector / pg_recvlogical", Unit::Ratio, ratios).target(ratio),
        figure("connector", Unit::Rate, ours(|run| run.rate)),
        figure("pg_recvlogical", Unit::Rate, theirs(|run| run.rate)),
        figure("CPU of the connector", Unit::Cpu, ours(|run| run.reader)).target(cpu),
        figure("CPU of pg_recvlogical", Unit::Cpu, theirs(|run| run.reader)),
        figure("CPU of the walsender to the connector", Unit::Cpu, ours(|run| run.walsender)),
        figure("CPU of the walsender to pg_recvlogical", Unit::Cpu, theirs(|run| run.walsender)),
        figure("CPU of Redis", Unit::Cpu, ours(|run| run.redis)),
        figure("peak memory of the connector", Unit::Memory, ours(|run| run.peak))
            .target(Some(MEMORY_TARGET)),
    ]
}
