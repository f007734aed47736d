//! What is measured, and how much of it.

use std::time::Duration;

use serde::Serialize;

use super::Args;
use super::subject::Subject;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Scenario {
    /// Latency and cost at a steady rate
    Steady,
    /// What polling's interval does to latency and cost
    Intervals,
    /// The highest rate that is kept up
    Peak,
    /// Many events in one moment
    Burst,
    /// What waiting costs
    Idle,
    /// Throughput and cost of a backlog, with one and more polling relays
    Backlog,
    /// A steady rate while an old transaction holds back vacuum and the slot
    LongTransaction,
    /// Late commits, next to naive relays that lose them
    Late,
    /// SIGKILL in mid-batch: repeated entries, silence, recovery
    Kill,
    /// Redis cannot be reached for a while
    Outage,
}

impl Scenario {
    pub(super) const ALL: [Self; 10] = [
        Self::Steady,
        Self::Intervals,
        Self::Peak,
        Self::Burst,
        Self::Idle,
        Self::Backlog,
        Self::LongTransaction,
        Self::Late,
        Self::Kill,
        Self::Outage,
    ];

    /// As the command line has it.
    pub(super) fn name(self) -> String {
        use clap::ValueEnum as _;
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// The sizes of a run.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Plan {
    pub(super) quick: bool,
    /// Events a second of the steady rounds.
    pub(super) rates: Vec<u32>,
    /// Intervals of the polling relay; the first one where only one is compared.
    pub(super) intervals: Vec<Duration>,
    /// Of the scenario that compares intervals.
    pub(super) compared_intervals: Vec<Duration>,
    /// Numbers of polling relays on one backlog.
    pub(super) relays: Vec<u32>,
    /// Events of the backlog.
    pub(super) backlog: u64,
    /// Events of the burst.
    pub(super) burst: u64,
    /// Rounds of the steady, burst and backlog scenarios.
    pub(super) rounds: u32,
    /// Length of a round under load, its warm-up included.
    pub(super) duration: Duration,
    pub(super) idle: Duration,
    pub(super) outage: Duration,
    /// Length of one try of a rate.
    pub(super) peak: Duration,
    pub(super) kills: u32,
    /// The polling relay's default.
    pub(super) lease: Duration,
    /// Its lease where it is killed.
    pub(super) kill_lease: Duration,
    pub(super) late_events: u64,
}

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

const fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

impl Plan {
    pub(super) fn new(args: &Args) -> Self {
        let quick = args.quick;
        let pick = |small: u64, full: u64| if quick { small } else { full };
        let intervals =
            if args.interval.is_empty() { vec![millis(50)] } else { args.interval.clone() };
        let compared_intervals = match args.interval.as_slice() {
            [] if quick => vec![millis(10), millis(250)],
            [] => [10, 50, 250, 1000].map(millis).to_vec(),
            given => given.to_vec(),
        };
        let duration = args.duration.unwrap_or(seconds(pick(3, 20)));
        Self {
            quick,
            rates: choose(&args.rate, quick, &[500], &[100, 1000, 5000]),
            intervals,
            compared_intervals,
            relays: choose(&args.relays, quick, &[1, 2], &[1, 2, 3, 4]),
            backlog: args.events.unwrap_or(pick(30_000, 1_000_000)),
            burst: args.events.map_or(pick(10_000, 100_000), |events| (events / 10).max(1000)),
            rounds: args.rounds.unwrap_or(if quick { 1 } else { 3 }),
            duration,
            idle: args.idle.unwrap_or(seconds(pick(2, 60))),
            outage: args.outage.unwrap_or(seconds(pick(3, 60))),
            peak: seconds(pick(1, 8)).min(duration),
            kills: if quick { 1 } else { 5 },
            lease: seconds(30),
            kill_lease: seconds(pick(1, 5)),
            late_events: pick(400, 4000),
        }
    }

    /// The competitors: the connector, a polling relay for each interval, and one that is notified.
    pub(super) fn subjects(&self) -> Vec<Subject> {
        let mut subjects = vec![Subject::Connector];
        subjects.extend(self.intervals.iter().map(|interval| Subject::polling(Some(*interval))));
        subjects.push(Subject::polling(None));
        subjects
    }

    /// One of each kind; with time enough also the one that is notified.
    pub(super) fn pair(&self) -> Vec<Subject> {
        let mut subjects = self.subjects();
        if self.quick {
            subjects.truncate(2);
        }
        subjects
    }
}

fn choose(given: &[u32], quick: bool, small: &[u32], full: &[u32]) -> Vec<u32> {
    match given {
        [] if quick => small.to_vec(),
        [] => full.to_vec(),
        given => given.to_vec(),
    }
}

#[cfg(test)]
impl Plan {
    pub(super) fn example() -> Self {
        use clap::Parser as _;
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            args: Args,
        }
        Self::new(&Line::parse_from(["compare", "--quick"]).args)
    }
}
