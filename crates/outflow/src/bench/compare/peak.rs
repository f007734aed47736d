//! The highest rate that is kept up: doubled until it is not, then narrowed down.
//!
//! A rate is kept up when, at the last commit, little more is under way than what a relay in order
//! always has under way, and the transactions were committed at that rate. Where the producers are
//! what fails, the relay's limit is not known, and the rate at which it fell behind is left out.

use std::time::Duration;

use super::Comparison;
use super::delivery::left_at_the_end;
use super::subject::{AtWork, Subject};
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Load, Spans, measure};

const SCENARIO: &str = "peak: transactions of 20";
/// Events of a transaction: producers that wait for the disk are to be faster than any relay.
const ROWS: u64 = 20;
/// Of which the rate is a multiple.
const FIRST: u32 = 4000;
const HIGHEST: u32 = 200_000;
/// How often the span between kept up and not kept up is halved.
const HALVINGS: u32 = 2;
/// What a relay may have under way beyond its interval.
const SLACK: Duration = Duration::from_millis(300);

/// How a rate went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    Up,
    /// The relay fell behind.
    RelayBehind,
    /// The transactions could not be committed at this rate.
    ProducersBehind,
}

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    for subject in run.plan.pair() {
        let (mut low, mut high, mut how) = (0, None, Kept::Up);
        let mut rate = FIRST;
        let mut halvings = if run.plan.quick { 1 } else { HALVINGS };
        while rate <= HIGHEST {
            match try_rate(run, &subject, rate).await? {
                Kept::Up => low = rate,
                other => (high, how) = (Some(rate), other),
            }
            match high {
                None => rate = rate.saturating_mul(2),
                Some(high) if halvings > 0 && high - low > FIRST / 8 => {
                    halvings -= 1;
                    rate = low.midpoint(high);
                }
                Some(_) => break,
            }
        }
        let name = subject.name();
        tally.add(SCENARIO, &name, ("highest rate kept up", Unit::Rate, low.into()));
        if let (Some(high), Kept::RelayBehind) = (high, how) {
            tally.add(SCENARIO, &name, ("relay falls behind at", Unit::Rate, high.into()));
        }
    }
    Ok(())
}

async fn try_rate(run: &Comparison<'_>, subject: &Subject, rate: u32) -> anyhow::Result<Kept> {
    let (stage, progress) = (run.stage, run.progress);
    let seconds = run.plan.peak.as_secs().max(1);
    let events = u64::from(rate).saturating_mul(seconds);
    let broker = run.fresh().await?;
    progress.step(format!("peak, {rate} events/s: {}", subject.name()), events);
    let mut at_work = AtWork::start(stage, &broker, subject, None, run.plan.lease).await?;
    let load = Load { rows: ROWS, ..Load::new(run.next_load(), rate, events) };
    let times = measure(stage, &broker, &mut at_work.programs, load, progress).await?;
    at_work.stop(stage).await?;
    let reached = Spans::of(&times, Duration::ZERO)?.rate;
    Ok(judge(reached, rate.into(), left_at_the_end(&times), subject.delay()))
}

fn judge(reached: f64, rate: f64, left: usize, delay: Duration) -> Kept {
    if left as f64 > rate * (SLACK + delay).as_secs_f64() {
        Kept::RelayBehind
    } else if reached < 0.95 * rate {
        Kept::ProducersBehind
    } else {
        Kept::Up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_up_with_no_more_under_way_than_always() {
        let delay = Duration::from_millis(200);
        assert_eq!(judge(990.0, 1000.0, 400, delay), Kept::Up);
        assert_eq!(judge(990.0, 1000.0, 600, delay), Kept::RelayBehind);
        assert_eq!(judge(900.0, 1000.0, 10, delay), Kept::ProducersBehind);
        assert_eq!(judge(900.0, 1000.0, 600, delay), Kept::RelayBehind);
    }
}
