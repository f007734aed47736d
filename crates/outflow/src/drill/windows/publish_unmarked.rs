//! The relay dies after XADD, before it marks or stores.

use tokio::time::Instant;

use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, STOP_WITHIN, Scene, Setup, Side};
use crate::drill::state::State;

pub(super) const DRILL: Drill = Drill {
    name: "publish-unmarked",
    injects: "the relay dies after XADD, before it marks the row or stores its offset",
    expects: "polling, and ids of Redis: two entries, one event id, one effect; ids of positions: one entry",
    why: "XADD and the mark (or an offset kept elsewhere) are two writes in two systems, and no commit \
spans both. Whoever dies between them leaves an entry that nobody remembers, and its successor publishes \
the row again: two entries with one event id, which the consumer's inbox tells apart. With ids that are \
made of the position in the commit order the second XADD asks for an id that is not above the stream's \
last one; Redis refuses it, the connector reads the entry that is there, finds its own event, and goes on.",
    breaks: &[],
    run: |course| Box::pin(run(course)),
};

/// How a relay is set up, and how many entries it leaves in the end.
struct Case {
    name: &'static str,
    relay: Relay,
    set: &'static [&'static str],
    /// Whether the relay's memory went into Redis with the entry, in one transaction.
    remembered: bool,
    entries: u64,
}

const CASES: [Case; 4] = [
    Case {
        name: "polling",
        relay: Relay::Polling,
        // a claim is held until it lapses
        set: &["polling.lease=1s"],
        remembered: false,
        entries: 2,
    },
    Case {
        name: "connector, entry_id=auto, offset in PostgreSQL",
        relay: Relay::Connector,
        set: &["sink.entry_id=auto", "offset.store=postgres"],
        remembered: false,
        entries: 2,
    },
    Case {
        name: "connector, entry_id=lsn, offset in PostgreSQL",
        relay: Relay::Connector,
        set: &["offset.store=postgres"],
        remembered: false,
        entries: 1,
    },
    Case {
        name: "connector, defaults: the offset in the transaction of the entry",
        relay: Relay::Connector,
        set: &[],
        remembered: true,
        entries: 1,
    },
];

async fn run(course: &mut Course) -> anyhow::Result<()> {
    for case in CASES {
        one(course, &case).await?;
    }
    Ok(())
}

async fn one(course: &mut Course, case: &Case) -> anyhow::Result<()> {
    let setup = case.set.iter().fold(Setup::new(case.relay), |setup, set| setup.set(set));
    let mut scene = Scene::set(course, setup).await?;
    // the slot, or the columns, are there; from here on there is one event and nothing else
    scene.begin_relay().await?;
    scene.relay.stop(STOP_WITHIN).await?;
    scene.post("j-1", 100).await?;
    let fault = match case.relay {
        Relay::Polling => "polling::published=kill",
        Relay::Connector => "relay::entries_published=kill",
    };
    scene.relay.start_with(&["--fault", fault])?;
    scene.was_killed(Side::Relay).await?;
    course.injected(format!("{}: relay killed between XADD and its mark", case.name));

    let at = |when: &str| format!("{}, {when}", case.name);
    let before = State {
        committed: 1,
        known: u64::from(case.remembered),
        entries: 1,
        ids: 1,
        ..State::default()
    };
    course.check(at("after the kill"), &before, &scene.state().await?);

    let since = Instant::now();
    scene.begin_relay().await?;
    scene.until("the relay does not mark the event", |state| state.known == 1).await?;
    let published = State { known: 1, entries: case.entries, ..before };
    course.check(at("after the restart"), &published, &scene.state().await?);
    scene.consumer.start()?;
    scene.settled().await?;
    course.recovered(since.elapsed());
    let applied = State { inbox: 1, effects: 1, turnover: 100, ..published };
    course.check(at("after the consumer"), &applied, &scene.state().await?);
    scene.consumer.stop(STOP_WITHIN).await?;
    scene.judge(course, &[]).await
}
