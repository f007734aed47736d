//! Nothing to do: what waiting costs.
//!
//! Statements are counted in the server's own log, which a server of this run can be told to write
//! for the relay alone; on servers that were given only transactions are counted.

use super::Comparison;
use super::cost::Reading;
use super::subject::AtWork;
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::stage::Stage;

const SCENARIO: &str = "idle";

pub(super) async fn run(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    log_statements(run.stage, "SET log_statement = 'all'").await?;
    let result = measure_all(run, tally).await;
    log_statements(run.stage, "RESET log_statement").await?;
    result
}

async fn measure_all(run: &Comparison<'_>, tally: &mut Tally) -> anyhow::Result<()> {
    let (stage, progress) = (run.stage, run.progress);
    for subject in run.plan.subjects() {
        let (mut broker, name) = (run.fresh().await?, subject.name());
        progress.step(format!("{SCENARIO}: {name}"), run.plan.idle.as_secs());
        let at_work = AtWork::start(stage, &broker, &subject, None, run.plan.lease).await?;
        // a relay slows down to its longest interval first
        tokio::time::sleep(super::SETTLE).await;
        let logged = statements(stage);
        let before = Reading::take(stage, &mut broker, &at_work).await?;
        tokio::time::sleep(run.plan.idle).await;
        let after = Reading::take(stage, &mut broker, &at_work).await?;
        let cost = before.until(after);
        if let Some((from, to)) = logged.zip(statements(stage)) {
            let rate = to.saturating_sub(from) as f64 / cost.seconds();
            tally.add(SCENARIO, &name, ("statements", Unit::PerSecond, rate));
        }
        tally.add_all(SCENARIO, &name, cost.per_second());
        at_work.stop(stage).await?;
    }
    Ok(())
}

/// Changes what the server logs of sessions that begin from now on.
async fn log_statements(stage: &Stage, how: &str) -> anyhow::Result<()> {
    if stage.own().is_ok() {
        let database = stage.sql.query_one("SELECT current_database()::text", &[]).await?;
        let database = crate::database::quote(database.try_get(0)?);
        stage.sql.batch_execute(&format!("ALTER DATABASE {database} {how}")).await?;
    }
    Ok(())
}

/// Statements that the log holds; none of a server that was given.
fn statements(stage: &Stage) -> Option<usize> {
    Some(count(&stage.own().ok()?.log()))
}

/// Messages of the simple protocol and executions of the extended one. A statement may go over several
/// lines, of which the first one counts.
fn count(log: &str) -> usize {
    let is_one =
        |line: &&str| line.contains("LOG:  statement: ") || line.contains("LOG:  execute ");
    log.lines().filter(is_one).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_counted_once() {
        let log = "12:00 [7] LOG:  statement: SELECT 1,\n\t2\n\
                   12:00 [7] LOG:  execute <unnamed>: SELECT 2\n\
                   12:00 [7] DETAIL:  parameters: $1 = '1'\n12:00 [8] LOG:  checkpoint complete\n";
        assert_eq!(count(log), 2);
    }
}
