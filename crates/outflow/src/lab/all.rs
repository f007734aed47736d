//! `outflow lab all`: every step in its order, then the check.

use serde::Serialize;

use super::broker::PROCESSED;
use super::check::{self, Check};
use super::folder::{DATABASE, Lab, quote};
use super::lesson::Lesson;
use super::place_order::{self, WANTED};
use super::relay;
use super::{consume, dual_write, order_check, relay_crash, report};

/// Everything that was told; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct All {
    steps: Vec<Lesson>,
    pub(super) check: Check,
}

/// Runs the steps. Each lesson is handed to `tell` when its step is done.
pub(super) async fn run(
    lab: &mut Lab,
    init: Lesson,
    tell: impl Fn(&Lesson) -> anyhow::Result<()>,
) -> anyhow::Result<All> {
    let mut steps = Vec::new();
    let mut done = |lesson: Lesson| {
        let lesson = lesson.brief();
        tell(&lesson)?;
        steps.push(lesson);
        anyhow::Ok(())
    };
    done(init)?;
    done(dual_write::run(lab).await?)?;
    let next = place_order::Args::default();
    loop {
        done(place_order::run(lab, &next)?)?;
        if lab.database()?.orders()?.len() >= WANTED {
            break;
        }
    }
    done(place_order::run(lab, &place_order::Args::failing())?)?;
    done(relay::run(lab).await?)?;
    // the second run shows that the list does not grow
    done(relay::run(lab).await?)?;
    done(order_check::run(lab).await?)?;
    done(relay_crash::run(lab).await?)?;
    done(consume::run(lab).await?)?;
    done(report::run(lab).await?)?;
    Ok(All { steps, check: check::run(lab).await? })
}

/// How to look around, and how to end it. What runs on is told by the check.
pub(super) async fn farewell(lab: &mut Lab) -> anyhow::Result<String> {
    let broker = lab.broker().await?;
    let lesson = Lesson::new("afterwards", "look around, and end it", "")
        .look(format!("sqlite3 {} 'SELECT * FROM outbox'", quote(&lab.path(DATABASE))))
        .look(broker.cli(&format!("HGETALL {PROCESSED}")))
        .next(lab, "clean");
    Ok(format!("\n{lesson}"))
}
