//! Faults on demand: `--fault relay::after_publish=kill@3`, for the drills.
//!
//! The libraries have failpoints between any two durable steps (crate `fail`). This program carries
//! them, and nothing but this flag arms them: no variable, no file, no signal
//! (docs/adr/0012-failpoints-in-the-shipped-binary.md).

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::anyhow;
use rustix::process::{Signal, getpid, kill_process};

/// Every failpoint, and what has just become durable when it is reached.
pub(crate) const POINTS: [(&str, &str); 30] = [
    ("relay::before_publish", "nothing of the batch"),
    ("relay::after_publish", "the entries, and an offset beside them"),
    ("relay::entries_published", "the same, of a batch that has entries"),
    ("relay::after_offset", "the entries and the offset, wherever it is kept"),
    ("relay::after_confirm", "the entries and the offset; the server was told"),
    ("relay::slot_created", "the slot"),
    ("relay::snapshot_planned", "the plan of a snapshot"),
    ("relay::snapshot_slot_created", "the plan and the slot"),
    ("relay::snapshot_begun", "the slot, and an offset that says which rows are left"),
    ("relay::snapshot_page_published", "a page of the snapshot"),
    ("relay::epoch_raised", "an offset with a new epoch"),
    ("relay::rewinding", "nothing: the slot is gone, its copy is still the rewind point"),
    ("relay::retention_between_batches", "one round of removals"),
    ("polling::claimed", "the claim"),
    ("polling::published", "the claim and the entries"),
    ("polling::marked", "the claim, the entries and the marks"),
    ("inbox::before_read", "nothing: the leases are valid"),
    ("inbox::after_read", "that the entries are pending"),
    ("inbox::before_apply", "that the entries are pending"),
    ("inbox::after_insert", "nothing more: the transaction is open"),
    ("inbox::after_handler", "nothing more: the transaction is open"),
    ("inbox::before_commit", "nothing more: the transaction is open"),
    ("inbox::rolled_back", "nothing of the batch, whose transaction has failed"),
    ("inbox::after_commit", "inbox rows and projection"),
    ("inbox::after_ack", "inbox rows, projection and acknowledgement"),
    ("inbox::let_go", "that another worker has the stream"),
    ("inbox::round_marked", "that failed events are being tried again"),
    ("inbox::attempt_started", "that an event is being tried alone"),
    ("inbox::replace_before_commit", "nothing more: the transaction is open"),
    ("inbox::retention_between_batches", "one round of removals"),
];

/// Faults that were asked for.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Faults {
    /// Die or pause at a failpoint; for drills
    #[arg(long = "fault", hide = true, value_name = "POINT=kill|stop[@HIT]")]
    faults: Vec<Fault>,
}

/// What happens when a point is reached for the n-th time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Fault {
    point: String,
    action: Action,
    hit: u32,
}

/// What the process does to itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    /// SIGKILL.
    Kill,
    /// SIGSTOP: it goes on when somebody sends SIGCONT.
    Stop,
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let expected = || anyhow!("expected POINT=kill or POINT=stop, perhaps with @HIT");
        let (point, what) = text.split_once('=').ok_or_else(expected)?;
        if !POINTS.iter().any(|(name, _)| *name == point) {
            return Err(anyhow!("`{point}` is no failpoint"));
        }
        let (action, hit) = what.split_once('@').unwrap_or((what, "1"));
        let action = match action {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            _ => return Err(expected()),
        };
        let hit = hit.parse().ok().filter(|hit| *hit > 0).ok_or_else(expected)?;
        Ok(Self { point: point.to_owned(), action, hit })
    }
}

impl Faults {
    /// Arms them, and says so: nobody should meet one by accident.
    pub(crate) fn arm(&self) -> anyhow::Result<()> {
        for Fault { point, action, hit } in self.faults.clone() {
            tracing::warn!("--fault: {action:?} at {point}, the {hit}. time it is reached");
            let left = AtomicU32::new(hit);
            let signal = match action {
                Action::Kill => Signal::KILL,
                Action::Stop => Signal::STOP,
            };
            let reached = move || {
                let before = left
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                if before == Ok(1) {
                    // the process is here and may signal itself
                    let _ = kill_process(getpid(), signal);
                }
            };
            fail::cfg_callback(&point, reached)
                .map_err(|error| anyhow!("{point} cannot be armed: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn a_fault_names_a_point_an_action_and_a_hit() {
        let fault = |text: &str| text.parse::<Fault>();
        let expected =
            Fault { point: "relay::after_publish".to_owned(), action: Action::Kill, hit: 3 };
        assert_eq!(fault("relay::after_publish=kill@3").unwrap(), expected);
        let stop = fault("inbox::after_commit=stop").unwrap();
        assert_eq!((stop.action, stop.hit), (Action::Stop, 1));
        for wrong in ["relay::after_publish", "relay::nowhere=kill", "relay::after_publish=nap@1"] {
            assert!(fault(wrong).is_err(), "{wrong}");
        }
        for hit in ["0", "x", ""] {
            assert!(fault(&format!("relay::after_publish=kill@{hit}")).is_err(), "{hit}");
        }
    }

    #[test]
    fn the_points_are_those_of_the_libraries() {
        let mut found = BTreeSet::new();
        for library in ["relay", "inbox"] {
            collect(
                &Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(library).join("src"),
                &mut found,
            );
        }
        let known: BTreeSet<String> = POINTS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(found, known);
    }

    fn collect(folder: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if let Ok(text) = std::fs::read_to_string(&path) {
                let points = text.split("fail_point!(\"").skip(1);
                found.extend(points.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
            }
        }
    }
}
