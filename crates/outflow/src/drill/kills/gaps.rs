//! SIGKILL in every gap between two durable steps, under load.

use rand::Rng as _;

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, Scene, Setup, Side};

/// Events a second while processes die.
const RATE: u32 = 300;
/// Kills in each gap, at hits that the seed decides.
const ROUNDS: u32 = 2;
const LATEST_HIT: u32 = 10;

/// What is killed where.
struct Gaps {
    relay: Relay,
    set: &'static [&'static str],
    side: Side,
    points: &'static [&'static str],
}

const WHY_CONNECTOR: &str = "The connector does three things one after the other: it publishes a batch, \
stores its offset, and tells the server. A crash before any of them repeats what is not stored; the entry id \
is made of the position, so Redis refuses a repetition. A crash behind one of them repeats nothing that is \
stored. So the stream is the same whatever the gap.";

pub(super) const CONNECTOR: Drill = Drill {
    name: "kill-connector",
    injects: "SIGKILL of the connector in each gap between publish, offset and confirmation",
    expects: "each position once, each event once, in order; caught up in seconds",
    why: WHY_CONNECTOR,
    breaks: &[],
    run: |course| {
        Box::pin(run(
            course,
            Gaps {
                relay: Relay::Connector,
                set: &[],
                side: Side::Relay,
                points: &[
                    "relay::before_publish",
                    "relay::entries_published",
                    "relay::after_confirm",
                ],
            },
        ))
    },
};

pub(super) const CONNECTOR_APART: Drill = Drill {
    name: "kill-connector-apart",
    injects: "the same with the offset in PostgreSQL, so that entries and offset are two writes",
    expects: "each position once all the same: the stream itself is the fence",
    why: WHY_CONNECTOR,
    breaks: &[],
    run: |course| {
        Box::pin(run(
            course,
            Gaps {
                relay: Relay::Connector,
                set: &["offset.store=postgres"],
                side: Side::Relay,
                points: &[
                    "relay::before_publish",
                    "relay::entries_published",
                    "relay::after_offset",
                    "relay::after_confirm",
                ],
            },
        ))
    },
};

pub(super) const CONNECTOR_AUTO: Drill = Drill {
    name: "kill-connector-auto",
    injects: "the same with ids of Redis and the offset in the transaction of the entries",
    expects: "each event once: entries and offset stand and roll back together",
    why: "With ids of Redis nothing refuses a repetition. It does not come to one, because the offset is the \
last command of the MULTI/EXEC transaction that adds the entries: after any crash, either both are there or \
neither. Kept elsewhere, the offset may lag: see publish-unmarked.",
    breaks: &[],
    run: |course| {
        Box::pin(run(
            course,
            Gaps {
                relay: Relay::Connector,
                set: &["sink.entry_id=auto"],
                side: Side::Relay,
                points: &["relay::before_publish", "relay::entries_published"],
            },
        ))
    },
};

pub(super) const POLLING: Drill = Drill {
    name: "kill-polling",
    injects: "SIGKILL of the polling relay in each gap between claim, publish and mark",
    expects: "at least one entry an event, one effect, in order; caught up when the lease has lapsed",
    why: "A claim is a lease and never the mark: a relay that dies holding one delays its rows until the lease \
lapses and loses none. What was published and not marked is published again, with the same event ids.",
    breaks: &[],
    run: |course| {
        Box::pin(run(
            course,
            Gaps {
                relay: Relay::Polling,
                set: &["polling.lease=1s"],
                side: Side::Relay,
                points: &[
                    "polling::claimed",
                    "relay::before_publish",
                    "polling::published",
                    "polling::marked",
                ],
            },
        ))
    },
};

pub(super) const CONSUMER: Drill = Drill {
    name: "kill-consumer",
    injects: "SIGKILL of the consumer in each gap between read, inbox, projection, commit and XACK",
    expects: "each effect once; what was read and not acknowledged comes again",
    why: "Up to the commit nothing of a batch is durable but that its entries are pending, and a worker reads \
its own pending entries first when it starts. Behind the commit they come again as duplicates.",
    breaks: &[],
    run: |course| {
        Box::pin(run(
            course,
            Gaps {
                relay: Relay::Connector,
                set: &[],
                side: Side::Consumer,
                points: &[
                    "inbox::after_read",
                    "inbox::before_apply",
                    "inbox::after_insert",
                    "inbox::after_handler",
                    "inbox::before_commit",
                    "inbox::after_commit",
                    "inbox::after_ack",
                ],
            },
        ))
    },
};

async fn run(course: &mut Course, gaps: Gaps) -> anyhow::Result<()> {
    let setup = gaps.set.iter().fold(Setup::new(gaps.relay), |setup, set| setup.set(set));
    let mut scene = Scene::set(course, setup).await?;
    scene.begin().await?;
    let load = scene.load("g", RATE, course.seed);
    load.commits(50).await?;
    for point in gaps.points {
        for _ in 0..ROUNDS {
            let hit = course.rng.random_range(1..=LATEST_HIT);
            scene.dies_at(course, gaps.side, point, hit).await?;
        }
    }
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
