//! `outflow drill`: rehearsed failures, judged by one oracle.
//!
//! | module | does |
//! | --- | --- |
//! | `list` | what a drill is, and all of them |
//! | `windows`, `kills`, `postgres`, `redis` | the drills, a file each |
//! | `given` | servers that were given: whether they are disposable, and cleaning up |
//! | `scene` | servers, proxies, databases and processes that can be broken |
//! | `state` | what stands in the servers at one moment |
//! | `course` | what one run of a drill did and found |
//! | `report`, `progress` | what is reported, and how |
//!
//! Processes are this program itself, servers are throwaway ones of the sandbox or given; faults are real:
//! SIGKILL and SIGSTOP, by the drill or at a failpoint (`--fault`), servers that die, proxies that cut.
//! Everything random comes from the seed.

mod course;
mod given;
mod kills;
mod list;
mod postgres;
mod progress;
mod redis;
mod report;
mod scene;
mod state;
mod windows;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::ArgGroup;
use clap::builder::PossibleValuesParser;
use comfy_table::{ContentArrangement, Table, presets};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::course::Course;
use self::given::Given;
use self::list::{ALL, Drill, GROUPS, LIST};
use self::progress::Progress;
use self::report::{Done, Report, explanation};
use crate::failure::{Refused, chain};

/// Exit code of a run that was ended before its end (128 + SIGINT, as shells have it).
const INTERRUPTED: u8 = 130;
/// How often drills of random moments inject, unless told otherwise.
const TIMES: u32 = 20;

/// Injects failures for real and proves that nothing was lost, doubled or reordered
///
/// Each drill starts a PostgreSQL, a Redis, a relay and a consumer of its own, breaks something, and lets an
/// independent check compare what was committed with stream, inbox and projection. Whatever stands still must say
/// why within 10 s, in its log, its metrics and `outflow status`. Needs the programs of PostgreSQL and Redis; leaves
/// nothing behind.
///
/// With --postgres and --redis, or one of them, it drills on servers of yours, in databases and under keys of its
/// own. They must be disposable: hold nothing, or carry the mark that --disposable puts on them. Drills that kill,
/// restart or configure a server are skipped there. Processes reach them through a proxy, so use URLs without TLS
/// or with sslmode=verify-ca.
#[derive(Debug, clap::Args)]
#[command(
    arg_required_else_help = true,
    group = ArgGroup::new("given").args(["postgres", "redis"]).multiple(true),
    after_help = "\
Examples:
  outflow drill list                            what there is
  outflow drill windows                         the five windows between two durable steps
  outflow drill windows --explain               the same, and why it comes out so
  outflow drill kill-consumer zombie-worker     some drills
  outflow drill kill-random --times 300         kills at random moments, hundreds of them
  outflow drill all --json > drills.jsonl       one object a drill
  outflow drill --soak 10m --seed 42            drills at random, the same again with the same seed
  outflow drill all --postgres postgres://postgres@test-db/postgres --redis redis://test-redis

Exit codes: 0 all passed; 1 one has failed, and the report says which and why; 3 the servers were refused, the
message says why; 130 interrupted."
)]
pub(crate) struct Args {
    /// Drills or groups of them: list, all, windows, kills, postgres, redis, or a name from the list; all with --soak
    #[arg(required_unless_present = "soak", value_name = "NAME", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(list::words()))]
    names: Vec<String>,
    /// Draw drills at random for this long
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    soak: Option<Duration>,
    /// Makes everything random the same again [default: another one every time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How often drills of random moments inject
    #[arg(long, default_value_t = TIMES, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    times: u32,
    /// Drill on this PostgreSQL, in databases of its own; needs CREATEDB, CREATEROLE and REPLICATION
    #[arg(long, value_name = "URL", env = "OUTFLOW_DRILL_POSTGRES", hide_env = true)]
    postgres: Option<String>,
    /// Drill on this Redis, under keys of its own
    #[arg(long, value_name = "URL", env = "OUTFLOW_DRILL_REDIS", hide_env = true)]
    redis: Option<String>,
    /// Mark the given servers as disposable, whatever they hold: all of it may be lost, now and in later drills
    #[arg(long, requires = "given")]
    disposable: bool,
    /// One JSON object a drill, each on a line
    #[arg(long)]
    json: bool,
    /// Also write the figures into this Markdown file, between its result marks if it has them
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Say why each drill comes out as it must
    #[arg(long)]
    explain: bool,
    /// Show every step on a terminal; elsewhere they are always shown
    #[arg(long, short)]
    verbose: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.names.iter().any(|name| name == LIST) {
        crate::output::text(&listed(args.explain))?;
        return Ok(ExitCode::SUCCESS);
    }
    crate::service::multi_threaded()?.block_on(async {
        let stop = crate::service::stop_on_signal()?;
        let (postgres, redis) = (args.postgres.as_deref(), args.redis.as_deref());
        let given = Given::prepare(postgres, redis, args.disposable).await?;
        let report = all(args, &given, &stop).await;
        given.clean_up().await?;
        let report = report?;
        if stop.is_cancelled() {
            eprintln!("interrupted; everything is cleaned up");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        if let Some(file) = &args.markdown {
            report.write_markdown(&given.versions().await?, file)?;
        }
        if !args.json {
            crate::output::text(&report.to_string())?;
        }
        Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    })
}

/// The drills that were asked for, without those that a soak would only skip.
fn chosen(args: &Args, given: &Given) -> anyhow::Result<Vec<&'static Drill>> {
    let everything = [ALL.to_owned()];
    let names: &[String] = if args.names.is_empty() { &everything } else { &args.names };
    let mut drills = list::select(names);
    if args.soak.is_some() {
        drills.retain(|drill| given.forbids(drill).is_none());
        if drills.is_empty() {
            let why = "none of these drills can be run on given servers: name others, or give none";
            return Err(Refused(why.to_owned()).into());
        }
    }
    Ok(drills)
}

/// Runs what was asked for until it is done or a signal comes.
async fn all(args: &Args, given: &Given, stop: &CancellationToken) -> anyhow::Result<Report> {
    let drills = chosen(args, given)?;
    let seed = args.seed.unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let number = args.soak.is_none().then_some(drills.len() as u64);
    let progress = Progress::start(number, args.verbose);
    let soak = args.soak.is_some();
    let mut report = Report { done: Vec::new(), seed, soak, explain: args.explain };
    let mut draw = StdRng::seed_from_u64(seed);
    let since = Instant::now();
    let mut left = drills.iter();
    loop {
        let (drill, seed) = match args.soak {
            // the n-th drill of a seed is always the same
            Some(time) if since.elapsed() < time => (drills.choose(&mut draw), draw.random()),
            Some(_) => (None, 0),
            None => (left.next(), seed),
        };
        let Some(drill) = drill else { break };
        progress.begin(drill.name, seed);
        let course = Course::new(seed, args.times, given.clone(), progress.clone());
        let done = tokio::select! {
            biased;
            // dropping the drill ends everything that it has started
            () = stop.cancelled() => break,
            done = one(drill, course) => done,
        };
        progress.done(&done.line());
        if args.json {
            crate::output::text(&done.json()?)?;
        }
        report.done.push(done);
    }
    progress.finish();
    Ok(report)
}

async fn one(drill: &'static Drill, mut course: Course) -> Done {
    let since = Instant::now();
    let error = match course.given.forbids(drill) {
        Some(why) => {
            course.skip(why);
            None
        }
        None => (drill.run)(&mut course).await.err().map(|error| chain(&error)),
    };
    let Course { seed, times, outcome, .. } = course;
    Done { drill, seed, times, outcome, error, took: since.elapsed() }
}

fn listed(explain: bool) -> String {
    let mut text = String::new();
    for group in &GROUPS {
        text += &format!("{}: {}\n", group.name, group.about);
        if explain {
            group.drills.iter().for_each(|drill| text += &format!("\n{}", explanation(drill)));
        } else {
            let mut table = Table::new();
            table
                .load_preset(presets::NOTHING)
                .set_content_arrangement(ContentArrangement::Dynamic);
            for drill in group.drills {
                table.add_row(["", drill.name, drill.injects]);
            }
            text += &format!("{table}\n");
        }
        text.push('\n');
    }
    text
}
