//! What reaches a projection: a consumer reads the stream when everything is in it, and the effects are
//! counted. Entries that came twice must have had one.

use anyhow::Context;

use super::Comparison;
use super::tally::Tally;
use crate::bench::broker::Broker;
use crate::bench::figure::Unit;
use crate::bench::inbox::{PROJECTION, group};
use crate::bench::process::{POLL, Patience};

/// Runs `outflow consume` with the demo's projection until it has acknowledged the newest entry; adds
/// how many events had an effect there, and how many conflicts there were.
pub(super) async fn add_effects(
    run: &Comparison<'_>,
    tally: &mut Tally,
    (scenario, subject): (&str, &str),
    broker: &mut Broker,
) -> anyhow::Result<()> {
    let (stage, stream) = (run.stage, broker.stream());
    stage.sql.batch_execute("TRUNCATE turnover").await?;
    let newest = broker.newest().await?;
    let name = stage.fresh_name();
    run.progress.step(format!("{scenario}: a consumer after {subject}"), 1);
    let mut consumer = stage.consumer(&name, broker, PROJECTION)?;
    let mut patience = Patience::new();
    loop {
        let (delivered, pending) = group(broker, &stream, &name).await?.unwrap_or_default();
        if delivered == newest && pending == 0 {
            break;
        }
        consumer.must_run()?;
        let first = delivered.split('-').next().unwrap_or_default();
        patience.watch(first.parse().unwrap_or(0)).context("the consumer")?;
        tokio::time::sleep(POLL).await;
    }
    consumer.stop().await?;
    const COUNT: &str = "SELECT (SELECT COALESCE(sum(journals), 0)::float8 FROM turnover), \
         (SELECT count(*)::float8 FROM outflow.conflict WHERE consumer_id = $1)";
    let row = stage.sql.query_one(COUNT, &[&name]).await?;
    tally.add(scenario, subject, ("effects at a consumer", Unit::Count, row.try_get(0)?));
    tally.add(scenario, subject, ("conflicts at a consumer", Unit::Count, row.try_get(1)?));
    Ok(())
}
