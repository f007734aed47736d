//! What waits to be polled: whether it stands still, and how it is shown.

use std::time::Duration;

use outflow_relay::PollingConfig;
use outflow_relay::polling::{Backlog, COUNTED};

/// Beyond its longest interval a relay may be busy for this long before somebody should know.
const PATIENCE: Duration = Duration::from_secs(10);

/// Rows that nobody has claimed, or that nobody gets rid of, stand still.
pub(super) fn judge(
    backlog: &Backlog,
    polling: &PollingConfig,
    problems: &mut Vec<String>,
    notes: &mut Vec<String>,
) {
    let patience = (PATIENCE + polling.max_interval).as_secs_f64();
    let waiting = backlog.oldest_seconds.filter(|age| *age > patience);
    let Some(age) = waiting.filter(|_| backlog.unpublished > 0) else { return };
    let (rows, age) = (rows(backlog), seconds(age));
    if backlog.relays == 0 {
        let lapsed = match backlog.lapsed {
            0 => String::new(),
            count => format!(" ({count} claims have run out: a relay was killed)"),
        };
        problems.push(format!(
            "{rows} wait to be published, the oldest for {age}, and no polling relay has claimed any{lapsed}: \
             start `outflow relay --polling`, or look at its log"
        ));
    } else if backlog.last_marked_seconds.is_none_or(|since| since > patience) {
        problems.push(format!(
            "{rows} wait to be published, the oldest for {age}; {} claimed, and none was published for {}: the \
             relay's log says what it waits for",
            backlog.claimed,
            backlog.last_marked_seconds.map_or("ever".to_owned(), seconds)
        ));
    } else {
        notes.push(format!("polling is behind: {rows} wait to be published, the oldest for {age}"));
    }
}

/// Lines of the table.
pub(super) fn facts(backlog: &Backlog) -> Vec<(&'static str, String)> {
    let oldest = backlog.oldest_seconds;
    let oldest = oldest.map_or(String::new(), |age| format!(", the oldest for {}", seconds(age)));
    let lapsed = match backlog.lapsed {
        0 => String::new(),
        count => format!(", {count} claims have run out"),
    };
    let marked = backlog.last_marked_seconds;
    let marked = marked.map_or("never".to_owned(), |since| format!("{} ago", seconds(since)));
    vec![
        ("to be polled", format!("{}{oldest}", rows(backlog))),
        ("claimed", format!("{} by {} relays{lapsed}", backlog.claimed, backlog.relays)),
        ("last marked", marked),
    ]
}

fn rows(backlog: &Backlog) -> String {
    let more = if backlog.unpublished >= COUNTED { " or more" } else { "" };
    let plural = if backlog.unpublished == 1 { "" } else { "s" };
    format!("{}{more} row{plural}", backlog.unpublished)
}

/// Whole seconds from one on, for people.
fn seconds(age: f64) -> String {
    let age = Duration::try_from_secs_f64(age).unwrap_or_default();
    let whole = Duration::from_secs(age.as_secs());
    if whole.is_zero() {
        return "less than 1s".to_owned();
    }
    humantime::format_duration(whole).to_string()
}
