//! Who wins where and by how much, in words made of the figures.

use super::tally::{Found, Tally};

/// What polling does better whatever the figures are, and what else no figure shows.
pub(super) const BESIDE_THE_FIGURES: [&str; 7] = [
    "Polling has no slot: nothing holds back log when the relay is gone, and nothing needs to be watched for it. A \
     connector that is gone keeps every byte of log until the disk is full or max_slot_wal_keep_size ends the slot.",
    "Polling needs neither wal_level = logical nor REPLICATION, and works through a pooler in session mode.",
    "Polling is simpler to operate: its state is in the rows and can be read and mended with SQL.",
    "Polling scales and fails over by starting another process; a slot has one reader.",
    "The connector repeats no entry after a crash, keeps commit order, and sees rows that are deleted in the transaction \
     that wrote them. Polling promises none of this.",
    "Consumers that deduplicate by event id see no difference between the two: the entries are the same.",
    "Both are outflow's own relays. A poller that deletes rows instead of marking them, or that needs no order \
     within an aggregate, may be cheaper than this one.",
];

/// One kind of sentence.
struct Claim {
    scenario: &'static str,
    figure: &'static str,
    /// What is better.
    less_is_better: bool,
    /// Begins the sentence.
    about: &'static str,
}

const CLAIMS: [Claim; 19] = [
    less("steady", "latency p50", "Latency, median"),
    less("steady", "latency p99", "Latency, p99"),
    less(
        "steady",
        "PostgreSQL CPU, whole server",
        "CPU of PostgreSQL for an event, producers and vacuum included",
    ),
    less("steady", "WAL", "WAL for an event, the producers' included"),
    more("peak", "highest rate kept up", "Highest rate kept up"),
    less("burst", "until all are readable", "Until a burst is delivered"),
    less("idle", "statements", "Statements a second while idle"),
    less("idle", "transactions", "Transactions a second while idle"),
    more("backlog", "throughput", "Throughput of a backlog"),
    less("backlog", "WAL", "WAL for an event that the relay itself causes"),
    less("backlog", "relay CPU", "CPU of the relay in a backlog"),
    less("backlog", "dead rows, most", "Dead rows during a backlog"),
    less("long transaction", "latency p99", "Latency beside an old transaction, p99"),
    less("long transaction", "dead rows afterwards", "Dead rows beside an old transaction"),
    less("kill", "repeated entries", "Entries repeated over SIGKILL"),
    less("kill", "time to recover, longest", "Time to recover from SIGKILL"),
    less("outage", "repeated entries", "Entries repeated over an outage of Redis"),
    less("outage", "time to recover", "Time to recover from an outage of Redis"),
    less("outage", "log kept by the slot, most", "Log kept during an outage of Redis"),
];

const fn more(scenario: &'static str, figure: &'static str, about: &'static str) -> Claim {
    Claim { scenario, figure, less_is_better: false, about }
}

const fn less(scenario: &'static str, figure: &'static str, about: &'static str) -> Claim {
    Claim { scenario, figure, less_is_better: true, about }
}

/// The sentences that the figures allow.
pub(super) fn sentences(tally: &Tally) -> Vec<String> {
    let mut sentences = Vec::new();
    for scenario in tally.scenarios() {
        let own = CLAIMS.iter().filter(|claim| scenario.starts_with(claim.scenario));
        sentences.extend(own.filter_map(|claim| sentence(tally, scenario, claim)));
        if scenario.starts_with("intervals") {
            sentences.extend(intervals(tally, scenario));
        }
        if scenario.starts_with("backlog") {
            sentences.extend(postgres_cpu(tally, scenario));
        }
        if scenario.starts_with("kill") {
            sentences.extend(effects(tally, scenario));
        }
        if scenario.starts_with("late") {
            sentences.extend(lost(tally, scenario));
        }
    }
    sentences
}

/// The connector against the best of the others.
fn sentence(tally: &Tally, scenario: &str, claim: &Claim) -> Option<String> {
    let connector = tally.find(scenario, "connector", claim.figure)?;
    let best = rivals(tally, scenario, claim.figure).min_by(|a, b| {
        let order = a.median.total_cmp(&b.median);
        if claim.less_is_better { order } else { order.reverse() }
    })?;
    let show = |found: &Found| format!("{} {}", found.subject, found.unit.show(found.median));
    let pair = format!("{} ({scenario}): {}, {}", claim.about, show(connector), show(best));
    let (low, high) =
        if connector.median <= best.median { (connector, best) } else { (best, connector) };
    let winner = if claim.less_is_better { low } else { high };
    Some(if high.median - low.median <= 0.05 * high.median {
        format!("{pair}: no difference worth a word.")
    } else if low.median > 0.0 {
        format!("{pair}: {} wins by a factor of {:.1}.", winner.subject, high.median / low.median)
    } else {
        format!("{pair}: {} wins.", winner.subject)
    })
}

/// Backends and walsender together: the one figure that polling may well win.
fn postgres_cpu(tally: &Tally, scenario: &str) -> Option<String> {
    let total = |subject: &str| {
        let part = |name| tally.find(scenario, subject, name).map(|found| found.median);
        Some(part("PostgreSQL CPU, backends")? + part("PostgreSQL CPU, walsender")?)
    };
    let connector = total("connector")?;
    let rival = rivals(tally, scenario, "throughput").next()?;
    let polling = total(&rival.subject)?;
    let winner = if connector <= polling { "the connector" } else { "polling" };
    Some(format!(
        "CPU of PostgreSQL for an event of a backlog, backends and walsender: connector \
         {connector:.1} us, {} {polling:.1} us: {winner} costs the database less. With transactions \
         of a single event the walsender works more for each.",
        rival.subject
    ))
}

/// What a longer interval costs and saves.
fn intervals(tally: &Tally, scenario: &str) -> Option<String> {
    let subjects = tally.subjects(scenario);
    let (first, last) = (subjects.first()?, subjects.last().filter(|_| subjects.len() > 1)?);
    let show = |subject: &str, figure: &str| {
        tally.find(scenario, subject, figure).map(|found| found.unit.show(found.median))
    };
    let cpu = "PostgreSQL CPU, backends";
    let costs = match (show(first, cpu), show(last, cpu)) {
        (Some(short), Some(long)) => {
            format!(", and the backends' CPU for an event {short} and {long}")
        }
        _ => String::new(),
    };
    Some(format!(
        "Interval of polling ({scenario}): {first} has a median latency of {}, {last} one of {}{costs}.",
        show(first, "latency p50")?,
        show(last, "latency p50")?,
    ))
}

fn lost(tally: &Tally, scenario: &str) -> Option<String> {
    let all: Vec<String> = tally
        .subjects(scenario)
        .iter()
        .filter_map(|subject| tally.find(scenario, subject, "lost events"))
        .map(|found| format!("{} {}", found.subject, found.unit.show(found.median)))
        .collect();
    (!all.is_empty()).then(|| {
        format!(
            "Events lost behind late commits ({scenario}): {}. A relay that reads on from the last id or \
             time must lose what commits behind it; a row's own state does not.",
            all.join(", ")
        )
    })
}

/// What repeated entries come to behind an inbox.
fn effects(tally: &Tally, scenario: &str) -> Option<String> {
    let of = |subject: &str| {
        let show = |figure| {
            let found = tally.find(scenario, subject, figure)?;
            Some(found.unit.show(found.median))
        };
        Some(format!(
            "{subject} {} of {} events with {} entries repeated",
            show("effects at a consumer")?,
            show("events committed")?,
            show("repeated entries")?
        ))
    };
    let all: Vec<String> = tally.subjects(scenario).into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| {
        format!(
            "Effects in the projection of a consumer with an inbox ({scenario}): {}.",
            all.join(", ")
        )
    })
}

fn rivals<'a>(
    tally: &'a Tally,
    scenario: &'a str,
    figure: &'a str,
) -> impl Iterator<Item = &'a Found> {
    tally.figures.iter().filter(move |found| {
        found.scenario == scenario && found.figure == figure && found.subject != "connector"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figure::Unit;

    #[test]
    fn whoever_is_better_wins() {
        let mut tally = Tally::default();
        let mut add = |scenario: &str, subject: &str, figure, unit, value| {
            tally.add(scenario, subject, (figure, unit, value));
        };
        add("steady: 5 events/s", "connector", "latency p50", Unit::Time, 1.0);
        add("steady: 5 events/s", "polling 50ms", "latency p50", Unit::Time, 25.0);
        add("steady: 5 events/s", "polling NOTIFY", "latency p50", Unit::Time, 0.5);
        add("backlog", "connector", "throughput", Unit::Rate, 2000.0);
        add("backlog", "polling 50ms", "throughput", Unit::Rate, 1000.0);
        add("intervals: 5", "polling 10ms", "latency p50", Unit::Time, 5.0);
        add("intervals: 5", "polling 1s", "latency p50", Unit::Time, 500.0);
        add("kill", "polling 50ms", "effects at a consumer", Unit::Count, 3000.0);
        add("kill", "polling 50ms", "events committed", Unit::Count, 3000.0);
        add("kill", "polling 50ms", "repeated entries", Unit::Count, 57.0);
        add("idle", "connector", "transactions", Unit::PerSecond, 1.0);
        add("idle", "polling 50ms", "transactions", Unit::PerSecond, 1.01);
        assert_eq!(
            sentences(&tally),
            [
                "Latency, median (steady: 5 events/s): connector 1.00 ms, polling NOTIFY 0.50 ms: \
                 polling NOTIFY wins by a factor of 2.0.",
                "Throughput of a backlog (backlog): connector 2,000/s, polling 50ms 1,000/s: \
                 connector wins by a factor of 2.0.",
                "Interval of polling (intervals: 5): polling 10ms has a median latency of 5.00 ms, \
                 polling 1s one of 500.00 ms.",
                "Effects in the projection of a consumer with an inbox (kill): polling 50ms 3,000 of \
                 3,000 events with 57 entries repeated.",
                "Transactions a second while idle (idle): connector 1.0/s, polling 50ms 1.0/s: no \
                 difference worth a word.",
            ]
        );
    }
}
