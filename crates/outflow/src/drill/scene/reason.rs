//! Whether what stands still says why, and where an operator looks: in the log, in a metric, and in
//! `outflow status`.

use std::time::Duration;

use tokio::time::Instant;

use super::series::Series;
use crate::drill::course::Course;
use crate::rig::child::{Child, is_trouble};

/// How long a cause may be unsaid (G7).
const SAID_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// Looks whether `child`, which stands still, says why within ten seconds: with one of these words in a line
/// of trouble behind `from`, in one of these series, and in what `outflow status` finds with the process's own
/// account (`GET /status`).
pub(in crate::drill) async fn says_why(
    course: &mut Course,
    child: &mut Child,
    from: u64,
    words: &[&str],
    series: &[Series],
) {
    let since = Instant::now();
    says(course, child, from, words).await;
    shows_it(course, child, since, series).await;
    names_it(course, child, since, words).await;
}

/// Looks whether `child` says within ten seconds what has befallen it, in a line of trouble behind
/// `from` with one of these words. For what it has mended by the time somebody looks.
pub(in crate::drill) async fn says(
    course: &mut Course,
    child: &mut Child,
    from: u64,
    words: &[&str],
) {
    let since = Instant::now();
    let wanted = |line: &str| is_trouble(line) && has_one(line, words);
    let at = format!("{} says why", child.name());
    match child.says(from, SAID_WITHIN, wanted).await {
        Ok(line) => {
            let found = format!("after {:.1} s: {}", since.elapsed().as_secs_f64(), line.trim());
            course.holds(at, with(words), found, true);
        }
        Err(error) => course.holds(at, with(words), error.to_string(), false),
    }
}

/// Looks whether one of these series is above zero in what `child` serves as metrics, asked within ten
/// seconds of `since`.
pub(in crate::drill) async fn shows_it(
    course: &mut Course,
    child: &Child,
    since: Instant,
    series: &[Series],
) {
    shows(course, child.name(), since, series, async || child.metrics().await).await;
}

async fn shows(
    course: &mut Course,
    name: &str,
    since: Instant,
    series: &[Series],
    mut metrics: impl AsyncFnMut() -> anyhow::Result<String>,
) {
    let look = Look { at: format!("metrics of {name}"), expected: raised(series), since };
    let is_raised = |line: &&str| series.iter().any(|series| series.is_raised(line));
    let ask = async || {
        let said = metrics().await?;
        anyhow::Ok(said.lines().filter(is_raised).map(str::to_owned).collect())
    };
    look.at(course, ask, |line| series.iter().any(|series| series.is_in(line))).await;
}

/// Looks whether `outflow status` names the reason, asked within ten seconds of `since`.
pub(in crate::drill) async fn names_it(
    course: &mut Course,
    child: &Child,
    since: Instant,
    words: &[&str],
) {
    let at = format!("outflow status on {}", child.name());
    let look = Look { at, expected: with(words), since };
    look.at(course, async || child.status().await, |line| has_one(line, words)).await;
}

/// A place that is looked at until it shows a reason, for as long as that may be unsaid.
struct Look {
    at: String,
    expected: String,
    since: Instant,
}

impl Look {
    /// Asks for lines until one of them is right, and notes it; else what was there at last.
    async fn at(
        self,
        course: &mut Course,
        mut ask: impl AsyncFnMut() -> anyhow::Result<Vec<String>>,
        right: impl Fn(&str) -> bool,
    ) {
        let Self { at, expected, since } = self;
        loop {
            // a server that does not answer holds up the answer, not the question
            let asked = since.elapsed();
            let said = ask().await.unwrap_or_else(|error| vec![crate::failure::chain(&error)]);
            if let Some(line) = said.iter().find(|line| right(line)) {
                let found = format!("after {:.1} s: {line}", asked.as_secs_f64());
                return course.holds(at, expected, found, asked <= SAID_WITHIN);
            }
            if since.elapsed() > SAID_WITHIN {
                let found = if said.is_empty() { "nothing".to_owned() } else { said.join("; ") };
                return course.holds(at, expected, found, false);
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

fn has_one(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn with(words: &[&str]) -> String {
    format!("within 10 s, with \"{}\"", words.join("\" or \""))
}

fn raised(series: &[Series]) -> String {
    let names: Vec<_> = series.iter().map(Series::to_string).collect();
    format!("within 10 s, {} above zero", names.join(" or "))
}

#[cfg(test)]
mod tests;
