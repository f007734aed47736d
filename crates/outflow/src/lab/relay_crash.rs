//! `outflow lab relay-crash`: the relay dies between push and mark, and runs again.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use anyhow::Context;
use rustix::process::Signal;

use super::broker::EVENTS;
use super::event::now;
use super::folder::{AT_LEAST_ONCE, Lab, quote};
use super::lesson::Lesson;
use super::relay;

const WHY: &str = "\
After a crash nobody knows whether the push went through, so the relay has to push again: at least
once. No retry, no sleep and no better order of the two steps avoids it. What helps is an event id
that stays the same over every delivery, and a receiver that remembers the ids it has seen.";

/// Runs the step.
pub(super) async fn run(lab: &mut Lab) -> anyhow::Result<Lesson> {
    let mut database = lab.database()?;
    if database.orders()?.is_empty() {
        return Err(lab.missing("there is no order yet", "place-order"));
    }
    let mut broker = lab.broker().await?;
    // what was pending before would be pushed first, and the crash would hit that
    relay::publish(&database, &mut broker).await?;
    let (order, event) = database.place("cherry", 4, &now(), false)?;
    let pid = crash(lab)?;
    let pending = database.pending()?;
    anyhow::ensure!(
        pending.iter().any(|row| row.event_id == event.event_id),
        "{} was marked although the relay had died",
        event.event_id
    );
    relay::publish(&database, &mut broker).await?;

    let count = broker.deliveries().await?.count(&event.event_id);
    let verdict = format!("DUPLICATE event_id={} count={count}", event.event_id);
    let died = format!("the relay (pid {pid}) pushed it and was killed by SIGKILL before the mark");
    let again = "the row was still PENDING; the next relay pushed it again, then marked it";
    lab.write(AT_LEAST_ONCE, &format!("{verdict}\n{died}\n{again}\n"))?;
    let file = quote(database.path());
    let id = &event.event_id;
    Ok(Lesson::new("relay-crash", "a relay dies between push and mark", WHY)
        .said(format!("order {} was placed; event {id} is pending", order.id))
        .said(died)
        .said(again)
        .said(format!("{}: {verdict}", lab.path(AT_LEAST_ONCE).display()))
        .fact("event_id", id.as_str())
        .fact("count", count)
        .fact("killed_pid", pid)
        .fact("file", lab.path(AT_LEAST_ONCE).display().to_string())
        .look(broker.cli(&format!("LRANGE {EVENTS} 0 -1")))
        .look(format!("sqlite3 {file} \"SELECT * FROM outbox WHERE event_id = '{id}'\""))
        .next(lab, "consume")
        .with(lab, &broker))
}

/// Runs the relay as a process of its own, which kills itself between the two steps; its pid.
fn crash(lab: &Lab) -> anyhow::Result<u32> {
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let mut command = Command::new(program);
    command.args(["lab", "relay", "--die-before-mark", "--dir"]).arg(lab.dir());
    if let Some(redis) = lab.given() {
        // a command line is seen by every user of the machine
        command.env("OUTFLOW_LAB_REDIS", redis.text());
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("a relay process cannot be started")?;
    let pid = child.id();
    let ended = child.wait_with_output().context("the relay process cannot be waited for")?;
    anyhow::ensure!(
        ended.status.signal() == Some(Signal::KILL.as_raw()),
        "the relay process did not die as it should ({}): {}",
        ended.status,
        String::from_utf8_lossy(&ended.stderr).trim()
    );
    Ok(pid)
}
