//! How the outbox grows and what the slot keeps, over time.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio_postgres::types::Type;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cost::Value;
use super::subject::AtWork;
use super::tally::Tally;
use crate::bench::figure::Unit;
use crate::bench::stage::Stage;

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(250);

/// Dead rows, sizes without and of the indexes, and bytes of log that the competitor's slot keeps, with
/// the rewind points that a connector makes of it.
const LOOK: &str = "\
    SELECT pg_stat_get_dead_tuples(t)::float8, pg_table_size(t)::float8, pg_indexes_size(t)::float8, \
      (SELECT COALESCE(max(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)), 0)::float8 \
       FROM pg_replication_slots WHERE slot_name = $1 OR starts_with(slot_name, $1 || '_rewind_')) \
    FROM (SELECT 'outflow.outbox'::regclass::oid AS t) AS o";

/// The state at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Since the first one.
    seconds: f64,
    dead_rows: f64,
    table_mib: f64,
    indexes_mib: f64,
    retained_mib: f64,
}

/// Looks until it is finished; dropping it ends it too.
#[derive(Debug)]
pub(super) struct Sampler {
    stop: CancellationToken,
    task: AbortOnDropHandle<anyhow::Result<Vec<Sample>>>,
}

impl Sampler {
    /// Of what `at_work` does to the table, and of its slot.
    pub(super) async fn start(stage: &Stage, at_work: &AtWork) -> anyhow::Result<Self> {
        let slot = at_work.slot();
        let (client, stop) = (stage.connect().await?, CancellationToken::new());
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let statement = client.prepare_typed(LOOK, &[Type::TEXT]).await?;
            let (begin, mut samples) = (Instant::now(), Vec::new());
            loop {
                // looks once more at the end
                let last = stopped.is_cancelled();
                let row = client.query_one(&statement, &[&slot]).await?;
                let mib = |column| anyhow::Ok(row.try_get::<_, f64>(column)? / 1_048_576.0);
                samples.push(Sample {
                    seconds: begin.elapsed().as_secs_f64(),
                    dead_rows: row.try_get(0)?,
                    table_mib: mib(1)?,
                    indexes_mib: mib(2)?,
                    retained_mib: mib(3)?,
                });
                if last {
                    return Ok(samples);
                }
                tokio::select! {
                    () = stopped.cancelled() => {}
                    () = tokio::time::sleep(EVERY) => {}
                }
            }
        });
        Ok(Self { stop, task: AbortOnDropHandle::new(task) })
    }

    pub(super) async fn finish(self) -> anyhow::Result<Vec<Sample>> {
        self.stop.cancel();
        self.task.await.context("the sampler is lost")?
    }
}

/// Adds figures and lines of the samples.
pub(super) fn add(tally: &mut Tally, scenario: &str, subject: &str, samples: &[Sample]) {
    type Part = fn(&Sample) -> f64;
    let lines: [(&'static str, Part); 4] = [
        ("dead rows over time", |sample| sample.dead_rows),
        ("table over time", |sample| sample.table_mib),
        ("indexes over time", |sample| sample.indexes_mib),
        ("log kept by the slot over time", |sample| sample.retained_mib),
    ];
    for (chart, part) in lines {
        let points = samples.iter().map(|sample| (sample.seconds, part(sample))).collect();
        tally.line(scenario, subject, chart, points);
    }
    tally.add_all(scenario, subject, figures(samples));
}

fn figures(samples: &[Sample]) -> Vec<Value> {
    let most = |part: fn(&Sample) -> f64| samples.iter().map(part).fold(0.0, f64::max);
    let last = |part: fn(&Sample) -> f64| samples.last().map_or(0.0, part);
    vec![
        ("dead rows, most", Unit::Count, most(|sample| sample.dead_rows)),
        ("dead rows afterwards", Unit::Count, last(|sample| sample.dead_rows)),
        ("table afterwards", Unit::Memory, last(|sample| sample.table_mib)),
        ("indexes afterwards", Unit::Memory, last(|sample| sample.indexes_mib)),
        ("log kept by the slot, most", Unit::Memory, most(|sample| sample.retained_mib)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_and_the_last_are_told_apart() {
        let sample = |seconds, dead_rows| Sample {
            seconds,
            dead_rows,
            table_mib: seconds,
            indexes_mib: 1.0,
            retained_mib: dead_rows / 2.0,
        };
        let samples = [sample(0.0, 1.0), sample(1.0, 8.0), sample(2.0, 4.0)];
        let values: Vec<f64> = figures(&samples).iter().map(|value| value.2).collect();
        assert_eq!(values, [8.0, 4.0, 2.0, 1.0, 4.0]);
        let mut tally = Tally::default();
        add(&mut tally, "s", "connector", &samples);
        assert_eq!(tally.series.len(), 4);
        assert_eq!(tally.series[0].points, [(0.0, 1.0), (1.0, 8.0), (2.0, 4.0)]);
    }
}
