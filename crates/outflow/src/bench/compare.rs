//! `outflow compare`: connector and polling relay on the same table, with the same load, one after the
//! other, measured from the outside.
//!
//! | module | does |
//! | --- | --- |
//! | `plan` | scenarios and sizes |
//! | `given` | servers that were given |
//! | `subject` | starts and stops what is compared |
//! | `steady` | latency and cost at a steady rate, with several intervals, beside an old transaction |
//! | `peak`, `burst`, `drain` | the highest rate, many events in a moment, a backlog |
//! | `idle` | what waiting costs |
//! | `kill`, `outage` | SIGKILL in mid-batch, and a Redis that cannot be reached |
//! | `effect` | what a consumer makes of entries that came twice |
//! | `late` | late commits, with two naive relays that lose them |
//! | `cost`, `sampler` | CPU time, WAL, statements; sizes over time |
//! | `delivery` | what the times of events say: pure |
//! | `tally` | what was measured |
//! | `summary` | who wins where and by how much, in words |
//! | `report`, `html`, `chart` | how it is shown |
//!
//! Programs, servers, `/proc` and progress are those of `bench`. Every competitor meets an empty table
//! and an empty Redis; the order changes from round to round; the median of the rounds counts.

mod burst;
mod chart;
mod cost;
mod delivery;
mod drain;
mod effect;
pub(super) mod given;
mod html;
mod idle;
mod kill;
mod late;
mod outage;
mod peak;
mod plan;
mod report;
mod sampler;
mod steady;
mod subject;
mod summary;
mod tally;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use self::given::Given;
use self::plan::{Plan, Scenario};
use self::report::{Conditions, Report};
use self::subject::Subject;
use self::tally::Tally;
use super::broker::Broker;
use super::machine::Machine;
use super::process::POLL;
use super::progress::Progress;
use super::stage::Stage;
use crate::cli::Global;

/// Autovacuum as it is, only with an eye on the table that is quick enough for a run of minutes.
const SETTINGS: [(&str, &str); 2] = [("autovacuum", "on"), ("autovacuum_naptime", "5s")];
/// How long backends may take to notice that their relay has ended.
const LEAVE_WITHIN: Duration = Duration::from_secs(30);
/// Until a relay that found nothing has slowed down.
const SETTLE: Duration = Duration::from_secs(2);

/// Measures the connector against the polling relay, side by side
///
/// Starts PostgreSQL (fsync on) and Redis from the binaries on this machine, in temporary folders, runs
/// both relays over the same table, load and Redis in turn, and ends everything afterwards. Needs Linux
/// and a machine with nothing else to do. It also says what polling does better.
///
/// With --postgres and --redis it measures on servers of yours: in a database that it creates and drops, and
/// under keys of its own. They are loaded to their limits, so servers that hold anything are refused.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow compare --quick                              a first impression in about two minutes
  outflow compare --html report.html                   everything, about an hour
  outflow compare --scenario steady --rate 100,5000 --interval 10ms,100ms,1s
  outflow compare --scenario backlog --events 1000000 --relays 1,2,4 --json
  outflow compare --scenario late                      why a relay must not read on from the last id
  outflow compare --quick --postgres postgres://postgres@test-db/postgres --redis redis://test-redis

Exit codes: 0 measured; 1 a scenario failed; 3 the servers were refused, the message says why.")]
pub(crate) struct Args {
    /// Small sizes, for a first impression
    #[arg(long)]
    quick: bool,
    /// Only these scenarios; may be repeated or separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    scenario: Vec<Scenario>,
    /// Events a second of the steady scenario [default: 100,1000,5000, with --quick 500]
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: Vec<u32>,
    /// Intervals of the polling relay [default: 50ms; where intervals are compared 10ms to 1s]
    #[arg(long, value_delimiter = ',', value_name = "DURATION", value_parser = interval)]
    interval: Vec<Duration>,
    /// Numbers of polling relays that share a backlog [default: 1,2,3,4, with --quick 1,2]
    #[arg(long, value_delimiter = ',', value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=16))]
    relays: Vec<u32>,
    /// Events in the backlog; a burst is a tenth of it [default: 1000000, with --quick 30000]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1000..=100_000_000))]
    events: Option<u64>,
    /// Rounds of the scenarios without faults, of which the median counts [default: 3, with --quick 1]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Length of a round under steady load [default: 20s, with --quick 3s]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    duration: Option<Duration>,
    /// Length of waiting in the idle scenario [default: 1m, with --quick 2s]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    idle: Option<Duration>,
    /// Length of the outage [default: 1m, with --quick 3s]
    #[arg(long, value_name = "DURATION", value_parser = span)]
    outage: Option<Duration>,
    /// Measure on this PostgreSQL, in a database of its own; needs CREATEDB, CREATEROLE and REPLICATION
    #[arg(
        long,
        value_name = "URL",
        requires = "redis",
        env = "OUTFLOW_COMPARE_POSTGRES",
        hide_env = true
    )]
    postgres: Option<String>,
    /// Measure on this Redis, under keys of its own
    #[arg(
        long,
        value_name = "URL",
        requires = "postgres",
        env = "OUTFLOW_COMPARE_REDIS",
        hide_env = true
    )]
    redis: Option<String>,
    /// Load these servers although they hold something
    #[arg(long, requires = "postgres")]
    allow_shared: bool,
    /// Report as one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the results into this Markdown file, between its result marks if it has them
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Also write a report with charts, one file that needs nothing else
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_millis(1), Duration::from_secs(10))
}

fn span(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_secs(1), Duration::from_secs(3600))
}

fn between(text: &str, least: Duration, most: Duration) -> Result<Duration, String> {
    let show = humantime::format_duration;
    humantime::parse_duration(text)
        .ok()
        .filter(|duration| (least..=most).contains(duration))
        .ok_or_else(|| format!("expected a duration from {} to {}", show(least), show(most)))
}

/// A run of everything.
struct Comparison<'a> {
    stage: &'a Stage,
    progress: &'a Progress,
    plan: Plan,
    loads: AtomicU32,
}

impl Comparison<'_> {
    /// The competitors in this round's order: whoever comes later finds warmer caches.
    fn in_turn(&self, subjects: &[Subject], round: u32) -> Vec<Subject> {
        let mut subjects = subjects.to_vec();
        if round.is_multiple_of(2) {
            subjects.reverse();
        }
        subjects
    }

    /// An empty table and an empty stream.
    async fn fresh(&self) -> anyhow::Result<Broker> {
        self.stage.sql.batch_execute("TRUNCATE outflow.outbox").await?;
        if self.stage.own().is_ok() {
            // nothing of the writing before is left to do; elsewhere the right to it may be lacking
            self.stage.sql.batch_execute("CHECKPOINT").await?;
        }
        self.stage.broker(false).await
    }

    /// What the progress bar says.
    fn title(&self, scenario: &str, round: u32, subject: &Subject) -> String {
        match self.plan.rounds {
            1 => format!("{scenario}: {}", subject.name()),
            rounds => format!("{scenario}, round {round} of {rounds}: {}", subject.name()),
        }
    }

    async fn scenario(&self, scenario: Scenario, tally: &mut Tally) -> anyhow::Result<()> {
        match scenario {
            Scenario::Steady => steady::run(self, tally).await,
            Scenario::Intervals => steady::intervals(self, tally).await,
            Scenario::Peak => peak::run(self, tally).await,
            Scenario::Burst => burst::run(self, tally).await,
            Scenario::Idle => idle::run(self, tally).await,
            Scenario::Backlog => drain::run(self, tally).await,
            Scenario::LongTransaction => steady::long_transaction(self, tally).await,
            Scenario::Late => late::run(self, tally).await,
            Scenario::Kill => kill::run(self, tally).await,
            Scenario::Outage => outage::run(self, tally).await,
        }
    }

    /// A number that no event id began with before.
    fn next_load(&self) -> u32 {
        self.loads.fetch_add(1, Ordering::Relaxed)
    }

    /// Waits until the backends of programs that were stopped are gone: their counts are complete then.
    async fn settle_statistics(&self) -> anyhow::Result<()> {
        const LEFT: &str = "SELECT count(*) FROM pg_stat_activity \
             WHERE datname = current_database() AND application_name = 'outflow'";
        let since = Instant::now();
        while self.stage.sql.query_one(LEFT, &[]).await?.try_get::<_, i64>(0)? > 0 {
            if since.elapsed() > LEAVE_WITHIN {
                bail!("connections of a relay that was stopped are still there");
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    if !cfg!(target_os = "linux") {
        bail!("compare reads CPU time and memory of processes from /proc: run it on Linux");
    }
    let plan = Plan::new(args);
    let scenarios =
        if args.scenario.is_empty() { Scenario::ALL.to_vec() } else { args.scenario.clone() };
    let report = crate::service::multi_threaded()?.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        let given = match args.postgres.as_deref().zip(args.redis.as_deref()) {
            Some((postgres, redis)) => {
                Some(Given::prepare(postgres, redis, args.allow_shared).await?)
            }
            None => None,
        };
        let result = tokio::select! {
            // dropping the work ends its servers and programs
            () = stop.cancelled() => Err(anyhow::anyhow!("stopped by a signal")),
            report = measure(&scenarios, plan, &global.set, given.clone()) => report,
        };
        if let Some(given) = &given {
            given.clean_up().await?;
        }
        result
    })?;
    if let Some(file) = &args.markdown {
        report::write_markdown(&report, file)?;
    }
    if let Some(file) = &args.html {
        let page = html::page(&report).context("the charts cannot be drawn")?;
        std::fs::write(file, page).with_context(|| file.display().to_string())?;
    }
    if args.json {
        crate::output::json(&report)?;
    } else {
        crate::output::text(&report.to_string())?;
    }
    Ok(if report.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(
    scenarios: &[Scenario],
    plan: Plan,
    overrides: &[String],
    given: Option<Given>,
) -> anyhow::Result<Report> {
    let progress = Progress::start();
    let machine = Machine::read();
    // given servers have their disk elsewhere
    let disk_gib = if given.is_some() { 0 } else { 2 };
    progress.say(&machine.warnings(disk_gib).join("\n"));
    let options = super::Options::bare(overrides);
    let servers = if given.is_some() { "given" } else { "throwaway" };
    let stage = match given {
        Some(given) => Stage::open_given(options, given, &["--polling"]).await?,
        None => Stage::open_with(options, &SETTINGS, &["--polling"], &progress).await?,
    };
    let (stage, progress) = (&stage, &progress);
    let run = Comparison { stage, progress, plan, loads: AtomicU32::new(1) };
    let (mut tally, mut failures) = (Tally::default(), Vec::new());
    for scenario in scenarios {
        // what the other scenarios found took long enough to be shown
        if let Err(error) = run.scenario(*scenario, &mut tally).await {
            let text = format!("{}: {}", scenario.name(), crate::failure::chain(&error));
            progress.say(&format!("failed: {text}"));
            failures.push(text);
        }
    }
    progress.finish();
    let (postgres, redis) = (stage.server_version().await?, stage.redis_version());
    let conditions = Conditions { machine, postgres, redis, servers, plan: run.plan };
    Ok(Report::new(conditions, overrides.to_vec(), tally, failures))
}
