//! `outflow demo`: a guided tour that ends with a proof.
//!
//! Throwaway servers, a ledger with concurrent producers, and connector and consumer as processes of
//! their own that are killed again and again. In the end the oracle compares what was committed with
//! what has arrived.
//!
//! | module | does |
//! | --- | --- |
//! | `stage` | servers, databases, configuration |
//! | `chaos` | when what is killed |
//! | `watch`, `display` | how far it is, and whether it still moves |
//! | `proof` | the table and the JSON in the end |
//! | `tour` | how to look around |

mod chaos;
mod display;
mod proof;
mod stage;
mod tour;
mod watch;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio_util::sync::CancellationToken;

use self::display::Display;
use self::proof::Proof;
use self::stage::Stage;
use self::watch::{Outcome, Progress};
use crate::oracle;
use crate::oracle::check::{Record, Rules};
use crate::oracle::collect::Sources;
use crate::rig::workload::{self, Counts, Goal, Plan};
use crate::rig::{CONSUMER, PRODUCER};

/// Exit code of a demo that was ended before its proof (128 + SIGINT, as shells have it).
const INTERRUPTED: u8 = 130;

/// Shows everything on throwaway servers, kills it on the way, and proves that nothing was lost
///
/// Starts a PostgreSQL and a Redis of its own, lets concurrent producers post to a ledger, kills connector
/// and consumer with SIGKILL at random moments, and in the end compares what was committed with the stream,
/// the inbox and the projection. Needs the programs of PostgreSQL and Redis; leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow demo                           20,000 events, 3 kills of each process
  outflow demo --keep                    leave it running and look around
  outflow demo --events 200000 --kills 10
  outflow demo --seconds 20 --rate 500   a steady load: latency without a backlog

Exit codes: 0 proved; 1 something is off, and the proof says what; 130 interrupted.")]
pub(crate) struct Args {
    /// Concurrent producers
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64), value_name = "N")]
    producers: u32,
    /// Events to commit
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000), value_name = "N")]
    events: u64,
    /// Produce for this long instead of so many events
    #[arg(long, conflicts_with = "events", value_parser = clap::value_parser!(u64).range(1..=86_400), value_name = "N")]
    seconds: Option<u64>,
    /// Events a second over all producers [default: as fast as they can]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1_000_000), value_name = "N")]
    rate: Option<u32>,
    /// How often connector and consumer are killed, each
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=1000), value_name = "N")]
    kills: u32,
    /// Makes the random moments of the kills the same again [default: another one every time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Seconds without any movement after which the demo gives up
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=3600), value_name = "N")]
    patience: u64,
    /// End with the proof as one JSON object on one line, and print nothing else on standard output
    #[arg(long)]
    json: bool,
    /// Leave everything running in the end, and say how to look around
    #[arg(long, conflicts_with = "json")]
    keep: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let runtime = crate::service::multi_threaded()?;
    runtime.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        // dropping the demo ends everything that it has started
        tokio::select! {
            biased;
            done = demo(args, &stop) => done,
            () = stop.cancelled() => {
                eprintln!("interrupted; everything is cleaned up");
                Ok(ExitCode::from(INTERRUPTED))
            }
        }
    })
}

async fn demo(args: &Args, stop: &CancellationToken) -> anyhow::Result<ExitCode> {
    let display = Display::new();
    display.say("starting PostgreSQL and Redis");
    let stage = Stage::build().await?;
    let version = (stage.postgres.version(), stage.redis.version().to_owned());
    display.say(&format!("PostgreSQL {} and Redis {} are ready", version.0, version.1));
    let seed = args.seed.unwrap_or_else(rand::random);

    let goal = match args.seconds {
        Some(seconds) => Goal::Time(Duration::from_secs(seconds)),
        None => Goal::Events(args.events),
    };
    let (history, goal) = split(goal);
    let mut record = produce(&stage, history_plan(args, history, seed), Arc::default()).await?;
    display.say(&format!("{history} events were committed before the connector's first start"));
    stage.start().await?;
    display.say(&format!(
        "{} producers at work; connector and consumer will be killed {} times each",
        args.producers, args.kills
    ));
    display.begin(args.seconds.is_none().then_some(args.events));

    let progress = Progress::new(goal.clone(), history, display);
    let played = play(args, &stage, &progress, goal, seed, &mut record).await;
    progress.display.end();
    let (outcome, produced_in) = played?;
    let settled_after = progress.elapsed();
    if let Outcome::StandsStill(still) = outcome {
        let why = stage.why().await;
        eprintln!("nothing has moved for {:.0} s:{why}", still.as_secs_f64());
    }
    let proof = Proof {
        verdict: examine(&stage, record).await?,
        kills: progress.kills(),
        took: settled_after,
        produced_in,
        producers: args.producers,
        seed,
    };
    show(args, &proof, &progress.counts)?;
    let holds = outcome == Outcome::Settled && proof.verdict.holds();
    if args.keep {
        crate::output::text(&tour::text(&stage).await)?;
        stop.cancelled().await;
    }
    Ok(if holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A few events come first: an outbox is often older than its connector.
fn split(goal: Goal) -> (u64, Goal) {
    match goal {
        Goal::Events(events) => {
            let history = (events / 20).min(500);
            (history, Goal::Events(events - history))
        }
        Goal::Time(_) | Goal::Until(_) => (100, goal),
    }
}

fn history_plan(args: &Args, events: u64, seed: u64) -> Plan {
    Plan {
        name: "h",
        producers: args.producers,
        goal: Goal::Events(events),
        rate: None,
        seed: seed.wrapping_add(1000),
        messages: false,
        survives: false,
    }
}

async fn produce(stage: &Stage, plan: Plan, counts: Arc<Counts>) -> anyhow::Result<Record> {
    let connect = workload::connect_to(stage.postgres.unix_url_for(PRODUCER));
    workload::run(plan, connect, counts).await.context("a producer failed")
}

/// Produces and kills until both are through and everything has settled. Returns how it ended and
/// how long the producers took.
async fn play(
    args: &Args,
    stage: &Stage,
    progress: &Progress,
    goal: Goal,
    seed: u64,
    record: &mut Record,
) -> anyhow::Result<(Outcome, Duration)> {
    let plan = Plan {
        name: "p",
        producers: args.producers,
        goal,
        rate: args.rate.map(f64::from),
        seed,
        messages: true,
        survives: false,
    };
    let mut produced_in = Duration::ZERO;
    let work = async {
        let producers = async {
            let own = produce(stage, plan, Arc::clone(&progress.counts)).await?;
            produced_in = progress.elapsed();
            progress.display.say("the producers are through");
            record.committed.extend(own.committed);
            record.rolled_back.extend(own.rolled_back);
            Ok(())
        };
        let (relay_seed, consumer_seed) = (seed.wrapping_add(2000), seed.wrapping_add(3000));
        tokio::try_join!(
            producers,
            chaos::run(&stage.relay, args.kills, relay_seed, progress),
            chaos::run(&stage.consumer, args.kills, consumer_seed, progress),
        )?;
        progress.done();
        anyhow::Ok(())
    };
    let watch = watch::run(stage, progress, Duration::from_secs(args.patience));
    let mut watch = std::pin::pin!(watch);
    let outcome = tokio::select! {
        outcome = &mut watch => outcome?,
        worked = work => {
            worked?;
            watch.await?
        }
    };
    Ok((outcome, produced_in))
}

async fn examine(stage: &Stage, record: Record) -> anyhow::Result<oracle::verdict::Verdict> {
    let (producer, consumer) = (stage.producer_database().await?, stage.consumer_database().await?);
    let sources = Sources {
        producer: &producer,
        consumer: &consumer,
        redis: stage.broker().await?,
        keys: "*",
        consumer_id: CONSUMER,
        rules: Rules { lsn_ids: true, may_repeat: false },
    };
    oracle::collect::examine(sources, record).await
}

fn show(args: &Args, proof: &Proof, counts: &Counts) -> anyhow::Result<()> {
    let faults = proof.verdict.to_string();
    if args.json {
        eprint!("{proof}{faults}");
        return crate::output::text(&proof.json()?);
    }
    crate::output::text(&format!("\n{proof}\n{}{faults}", proof.figures(counts)))
}
