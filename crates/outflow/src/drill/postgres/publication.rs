//! The publication is dropped, or the table that it carries is swapped for another one.

use super::{begins_again_from_rows, under_load};
use crate::drill::course::Course;
use crate::drill::list::Drill;
use crate::drill::scene::{Relay, STOP_WITHIN, Series, Setup, says_why};

const SHOWN: [Series; 1] = [Series::relay_waits_on("publication")];

pub(super) const DROPPED: Drill = Drill {
    name: "pg-publication-dropped",
    injects: "DROP PUBLICATION under load, and CREATE PUBLICATION after a while",
    expects: "says why and confirms nothing meanwhile; the way out loses nothing",
    why: "Log that was written while the publication did not exist cannot be read with it: PostgreSQL looks up the \
publication as it was at that point of the log. Without a look at it the stream would end with an error again and \
again, or go on without the table. The connector looks, says which, and confirms nothing, so nothing is given up.",
    breaks: &[],
    run: |course| Box::pin(dropped(course)),
};

pub(super) const SWAPPED: Drill = Drill {
    name: "pg-table-swapped",
    injects: "the outbox is renamed and a new table takes its name, as tools for online changes do",
    expects: "says why and confirms nothing meanwhile; goes on when the table is back",
    why: "A publication follows a table, not a name: after the swap producers write to a table that no publication \
carries, and the old one is silent. To the log that looks like a quiet day. So the connector compares the table \
behind the name with the one that it reads.",
    breaks: &[],
    run: |course| Box::pin(swapped(course)),
};

async fn dropped(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let client = scene.producer_database().await?;
    let from = scene.relay.log_end();
    client.batch_execute("DROP PUBLICATION outflow").await?;
    course.injected("DROP PUBLICATION");
    says_why(course, &mut scene.relay, from, &["publication"], &SHOWN).await;
    load.commits(100).await?;
    let sql = "CREATE PUBLICATION outflow FOR TABLE outflow.outbox WITH (publish = 'insert')";
    let from = scene.relay.log_end();
    client.batch_execute(sql).await?;
    load.commits(100).await?;
    // rows were written while there was none, and no retry gets past that
    says_why(course, &mut scene.relay, from, &["did not exist"], &SHOWN).await;
    load.end(&mut scene).await?;
    scene.relay.stop(STOP_WITHIN).await?;
    begins_again_from_rows(course, &mut scene).await?;
    scene.end(course).await
}

const SWAP: &str = "\
BEGIN;
ALTER TABLE outflow.outbox RENAME TO outbox_old;
CREATE TABLE outflow.outbox (LIKE outflow.outbox_old INCLUDING ALL);
COMMIT;";

/// In the order of insertion, under a lock that nobody writes past.
const BACK: &str = "\
BEGIN;
LOCK TABLE outflow.outbox IN ACCESS EXCLUSIVE MODE;
ALTER TABLE outflow.outbox RENAME TO outbox_new;
ALTER TABLE outflow.outbox_old RENAME TO outbox;
INSERT INTO outflow.outbox (event_id, aggregate_type, aggregate_id, event_type, payload, headers, seq, created_at)
SELECT event_id, aggregate_type, aggregate_id, event_type, payload, headers, seq, created_at
FROM outflow.outbox_new ORDER BY id;
DROP TABLE outflow.outbox_new;
COMMIT;";

async fn swapped(course: &mut Course) -> anyhow::Result<()> {
    let (mut scene, load) = under_load(course, Setup::new(Relay::Connector)).await?;
    let client = scene.producer_database().await?;
    let from = scene.relay.log_end();
    client.batch_execute(SWAP).await?;
    course.injected("outflow.outbox renamed, another table under its name");
    says_why(course, &mut scene.relay, from, &["publication", "table"], &SHOWN).await;
    load.commits(100).await?;
    client.batch_execute(BACK).await?;
    course.say("the table is back, with the rows of the other one");
    course.recovered(scene.caught_up().await?);
    load.commits(50).await?;
    load.end(&mut scene).await?;
    scene.end(course).await
}
