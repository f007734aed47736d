//! Whether what stands still says why, and where an operator looks: in the log, and in `outflow status`.

use std::time::Duration;

use tokio::time::Instant;

use crate::drill::course::Course;
use crate::rig::child::{Child, is_trouble};

/// How long a cause may be unsaid (G7).
const SAID_WITHIN: Duration = Duration::from_secs(10);
/// Between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// Looks whether `child`, which stands still, says why within ten seconds: with one of these words in a line
/// of trouble behind `from`, and in what `outflow status` finds with the process's own account
/// (`GET /status`).
pub(in crate::drill) async fn says_why(
    course: &mut Course,
    child: &mut Child,
    from: u64,
    words: &[&str],
) {
    let since = Instant::now();
    says(course, child, from, words).await;
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
            course.holds(at, expected(words), found, true);
        }
        Err(error) => course.holds(at, expected(words), error.to_string(), false),
    }
}

/// Looks whether `outflow status` names the reason, asked within ten seconds of `since`.
pub(in crate::drill) async fn names_it(
    course: &mut Course,
    child: &Child,
    since: Instant,
    words: &[&str],
) {
    let at = format!("outflow status on {}", child.name());
    loop {
        // a server that does not answer holds up the answer, not the question
        let asked = Instant::now();
        let said = match child.status().await {
            Ok(said) => said,
            Err(error) => vec![crate::failure::chain(&error)],
        };
        if let Some(line) = said.iter().find(|line| has_one(line, words)) {
            let found = format!("after {:.1} s: {line}", (asked - since).as_secs_f64());
            return course.holds(at, expected(words), found, true);
        }
        if since.elapsed() > SAID_WITHIN {
            return course.holds(at, expected(words), said.join("; "), false);
        }
        tokio::time::sleep(EVERY).await;
    }
}

fn has_one(line: &str, words: &[&str]) -> bool {
    words.iter().any(|word| line.contains(word))
}

fn expected(words: &[&str]) -> String {
    format!("within 10 s, with \"{}\"", words.join("\" or \""))
}
