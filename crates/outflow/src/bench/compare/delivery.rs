//! What the times of a round's events say about their delivery. Pure.

use std::time::{Duration, Instant};

use super::cost::Value;
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::latency::{Spans, Times};

/// Where the latency is read off.
const QUANTILES: [(&str, f64); 4] =
    [("latency p50", 0.5), ("latency p90", 0.9), ("latency p99", 0.99), ("latency p99.9", 0.999)];
/// Points of a line over time, a second.
const POINTS: f64 = 10.0;

/// Percentiles of the latency as figures and as a line.
pub(super) fn add_latency(tally: &mut Tally, scenario: &str, subject: &str, spans: &Spans) {
    let millis = |micros: u64| micros as f64 / 1e3;
    let latency = &spans.from_commit;
    for (figure, quantile) in QUANTILES {
        let value = millis(latency.value_at_quantile(quantile));
        tally.add(scenario, subject, (figure, Unit::Time, value));
    }
    tally.add(scenario, subject, ("latency, longest", Unit::Time, millis(latency.max())));
    let due = millis(spans.from_due.value_at_quantile(0.99));
    tally.add(scenario, subject, ("due to entry, p99", Unit::Time, due));
    tally.add(scenario, subject, ("rate reached", Unit::Rate, spans.rate));
    // the nines from 0 to 99.99 %
    let points = (0..=40).map(|step| {
        let nines = f64::from(step) / 10.0;
        (nines, millis(latency.value_at_quantile(1.0 - 10f64.powf(-nines))))
    });
    tally.line(scenario, subject, "latency by percentile", points.collect());
}

/// What came, what did not, and how it was spread over time; `repeated` entries were counted in the
/// stream.
pub(super) fn add_disturbed(
    tally: &mut Tally,
    scenario: &str,
    subject: &str,
    times: &[Times],
    repeated: u64,
) {
    let figures: [Value; 4] = [
        ("lost events", Unit::Count, lost(times) as f64),
        ("repeated entries", Unit::Count, repeated as f64),
        ("longest silence", Unit::Time, silence(times).as_secs_f64() * 1e3),
        ("latency, longest", Unit::Time, longest(times).as_secs_f64() * 1e3),
    ];
    tally.add_all(scenario, subject, figures);
    tally.line(scenario, subject, "latency over time", latency_over_time(times));
    tally.line(scenario, subject, "lag over time", lag_over_time(times));
}

/// Events that never came.
pub(super) fn lost(times: &[Times]) -> usize {
    times.iter().filter(|times| times.readable.is_none()).count()
}

/// Longest time between two new events.
pub(super) fn silence(times: &[Times]) -> Duration {
    let mut readable: Vec<Instant> = times.iter().filter_map(|times| times.readable).collect();
    readable.sort_unstable();
    let gaps = readable.windows(2).filter_map(|pair| match pair {
        [first, second] => Some(second.duration_since(*first)),
        _ => None,
    });
    gaps.max().unwrap_or_default()
}

fn latency(times: &Times) -> Option<Duration> {
    Some(times.readable?.saturating_duration_since(times.committed?))
}

pub(super) fn longest(times: &[Times]) -> Duration {
    times.iter().filter_map(latency).max().unwrap_or_default()
}

/// From `at` until everything was readable that had been committed by then.
pub(super) fn recovery(times: &[Times], at: Instant) -> Duration {
    let before = times.iter().filter(|times| times.committed.is_some_and(|done| done <= at));
    let last = before.filter_map(|times| times.readable).max();
    last.map_or(Duration::ZERO, |last| last.saturating_duration_since(at))
}

/// Events committed and not yet readable, at the time of the last commit.
pub(super) fn left_at_the_end(times: &[Times]) -> usize {
    let Some(end) = times.iter().filter_map(|times| times.committed).max() else { return 0 };
    times.iter().filter(|times| times.readable.is_none_or(|readable| readable > end)).count()
}

/// Longest latency of the events that were due in each tenth of a second, in milliseconds.
pub(super) fn latency_over_time(times: &[Times]) -> Vec<(f64, f64)> {
    let Some(begin) = times.first().map(|times| times.due) else { return Vec::new() };
    let mut points: Vec<(f64, f64)> = Vec::new();
    for times in times {
        let tenth = (times.due.duration_since(begin).as_secs_f64() * POINTS).floor() / POINTS;
        let millis = latency(times).unwrap_or_default().as_secs_f64() * 1e3;
        match points.last_mut() {
            Some((at, most)) if *at == tenth => *most = most.max(millis),
            _ => points.push((tenth, millis)),
        }
    }
    points
}

/// Events that are committed and not yet readable, at every tenth of a second.
pub(super) fn lag_over_time(times: &[Times]) -> Vec<(f64, f64)> {
    let Some(begin) = times.first().map(|times| times.due) else { return Vec::new() };
    let sorted = |part: fn(&Times) -> Option<Instant>| {
        let since = |at: Instant| at.saturating_duration_since(begin).as_secs_f64();
        let mut all: Vec<f64> = times.iter().filter_map(part).map(since).collect();
        all.sort_unstable_by(f64::total_cmp);
        all
    };
    let (committed, readable) = (sorted(|times| times.committed), sorted(|times| times.readable));
    let end = committed.last().copied().unwrap_or(0.0).max(readable.last().copied().unwrap_or(0.0));
    let mut points = Vec::new();
    let mut at = 0.0;
    while at <= end + 1.0 / POINTS {
        let until = |all: &[f64]| all.partition_point(|one| *one <= at) as f64;
        points.push((at, (until(&committed) - until(&readable)).max(0.0)));
        at += 1.0 / POINTS;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events that were due every 100 ms, committed at once, and readable so many ms later.
    fn events(latencies: &[Option<u64>]) -> (Instant, Vec<Times>) {
        let begin = Instant::now();
        let event = |(number, latency): (usize, &Option<u64>)| {
            let due = begin + Duration::from_millis(100) * u32::try_from(number).unwrap();
            let readable = latency.map(|latency| due + Duration::from_millis(latency));
            Times { due, committed: Some(due), readable }
        };
        (begin, latencies.iter().enumerate().map(event).collect())
    }

    #[test]
    fn what_never_came_is_lost_and_everything_else_has_a_latency() {
        let (begin, times) = events(&[Some(1), Some(350), Some(250), None, Some(2)]);
        assert_eq!(lost(&times), 1);
        assert_eq!(longest(&times), Duration::from_millis(350));
        // 1, 402, 450, 450 ms
        assert_eq!(silence(&times), Duration::from_millis(401));
        assert_eq!(recovery(&times, begin), Duration::from_millis(1));
        let at = begin + Duration::from_millis(150);
        assert_eq!(recovery(&times, at), Duration::from_millis(300), "the second event");
        assert_eq!(left_at_the_end(&times), 4);
    }

    #[test]
    fn lag_rises_with_commits_and_falls_with_deliveries() {
        let (_, times) = events(&[Some(250), Some(150), Some(50)]);
        let lag: Vec<f64> = lag_over_time(&times).iter().map(|point| point.1).collect();
        assert_eq!(lag.get(..4).unwrap(), [1.0, 2.0, 3.0, 0.0]);
        assert_eq!(latency_over_time(&times)[0], (0.0, 250.0));
        assert!(lag_over_time(&[]).is_empty());
    }
}
