//! SIGSTOP: a process that seems to be dead, is replaced, and wakes up with its work half done.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::Instant;

use crate::drill::course::Course;
use crate::drill::list::{Drill, Server};
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup, Side, is_at_work};

const RATE: u32 = 200;
/// How long a successor may take: leases and timeouts of these scenes are 2 s.
const SUCCEEDS_WITHIN: Duration = Duration::from_secs(20);

/// Who pauses where, and who takes over.
struct Zombie {
    setup: Setup,
    side: Side,
    point: &'static str,
    successor: &'static [&'static str],
    /// Tells in the successor's log that it has taken over.
    takes_over: fn(&str) -> bool,
}

pub(super) const CONNECTOR: Drill = Drill {
    name: "zombie-connector",
    injects: "SIGSTOP of a connector with a batch in hand, a successor on its slot, SIGCONT",
    expects: "the batch is refused where the successor has published it: each position once",
    why: "A paused process cannot know that it was replaced, and no lock tells it in time. The stream does: the \
successor's entries have raised its last id, so the zombie's batch asks for ids that are not above it and is \
refused as a whole; what it then finds at these ids are its own events.",
    breaks: &[Server::Postgres],
    run: |course| {
        let mut setup = Setup::new(Relay::Connector);
        // the server lets go of the zombie's slot after this
        setup.postgres = setup.postgres.setting("wal_sender_timeout", "2s");
        let zombie = Zombie {
            setup,
            side: Side::Relay,
            point: "relay::before_publish",
            successor: &["relay"],
            takes_over: is_at_work,
        };
        Box::pin(run(course, zombie))
    },
};

pub(super) const POLLING: Drill = Drill {
    name: "zombie-polling",
    injects: "SIGSTOP of a polling relay with claimed rows in hand, a successor, SIGCONT",
    expects: "it notices that its lease has lapsed and publishes nothing of them",
    why: "A claim ends by itself, and the relay knows its own clock: when it wakes up it looks at the time \
before it publishes. Entries may be doubled where it was paused behind that look; event ids are not.",
    breaks: &[],
    run: |course| {
        let zombie = Zombie {
            setup: Setup::new(Relay::Polling).set("polling.lease=2s"),
            side: Side::Relay,
            point: "polling::claimed",
            successor: &["relay", "--polling", "--set", "polling.relay=relay-2"],
            takes_over: is_at_work,
        };
        Box::pin(run(course, zombie))
    },
};

pub(super) const WORKER: Drill = Drill {
    name: "zombie-worker",
    injects: "SIGSTOP of a worker with a batch in hand, another worker on its streams, SIGCONT",
    expects: "the other one applies the batch; the zombie applies nothing of it",
    why: "Streams are leased, so that one worker reads each. The lease is not what makes it safe: the worker \
writes its position in the same transaction, under the token of its lease, and the inbox key refuses what \
is there. A zombie's batch fails on both.",
    breaks: &[],
    run: |course| {
        let zombie = Zombie {
            setup: Setup::new(Relay::Connector).set("consumer.lease=2s"),
            side: Side::Consumer,
            point: "inbox::before_apply",
            successor: &["consume", "--set", "consumer.worker=worker-2"],
            takes_over: |_| true,
        };
        Box::pin(run(course, zombie))
    },
};

async fn run(course: &mut Course, zombie: Zombie) -> anyhow::Result<()> {
    let mut scene = Scene::set(course, zombie.setup).await?;
    scene.begin().await?;
    let load = scene.load("z", RATE, course.seed);
    load.commits(50).await?;
    let child = scene.side(zombie.side);
    child.stop(STOP_WITHIN).await?;
    child.start_with(&["--fault", &format!("{}=stop@3", zombie.point)])?;
    child.is_paused(SUCCEEDS_WITHIN).await?;
    let pid = child.pid();
    course.injected(format!("{} (pid {pid}) paused at {}", child.name(), zombie.point));

    let since = Instant::now();
    let mut successor = scene.process("successor", zombie.successor);
    successor.start()?;
    successor.says(0, SUCCEEDS_WITHIN, zombie.takes_over).await?;
    scene.caught_up().await?;
    course.recovered(since.elapsed());
    load.commits(100).await?;

    scene.side(zombie.side).signal(Signal::CONT)?;
    course.say("it wakes up");
    load.commits(200).await?;
    load.end(&mut scene).await?;
    scene.end(course).await?;
    successor.check()
}
