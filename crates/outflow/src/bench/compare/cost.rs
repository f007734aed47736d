//! What a competitor costs, seen from the outside: CPU time in `/proc`, WAL and transactions in
//! PostgreSQL's own counters, Redis's account of itself.
//!
//! Of a PostgreSQL that runs elsewhere `/proc` knows nothing: those figures are left out.

use std::time::{Duration, Instant};

use super::subject::AtWork;
use crate::bench::broker::Broker;
use crate::bench::figure::Unit;
use crate::bench::process::{cpu, cpu_of_family, is_backend, peak_mib};
use crate::bench::stage::Stage;

/// A figure with its unit.
pub(super) type Value = (&'static str, Unit, f64);

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    at: Instant,
    relay: Duration,
    postgres: Option<Postgres>,
    /// Everything that the server has ever done; known of a server of this run.
    server: Option<Duration>,
    redis: Duration,
    /// Bytes of WAL ever written.
    wal: f64,
    /// Transactions ever ended in the database.
    transactions: f64,
}

/// CPU time of the processes that work for a competitor.
#[derive(Debug, Clone, Copy)]
struct Postgres {
    backends: Duration,
    walsender: Duration,
}

/// The differences between two readings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    took: f64,
    relay: f64,
    /// Backends and walsender.
    postgres: Option<(f64, f64)>,
    server: Option<f64>,
    redis: f64,
    wal: f64,
    transactions: f64,
}

impl Reading {
    pub(super) async fn take(
        stage: &Stage,
        broker: &mut Broker,
        at_work: &AtWork,
    ) -> anyhow::Result<Self> {
        // a backend hands its counts over when it has been idle for a while, at most a second
        const COUNTERS: &str = "\
            SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8, \
              (SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database \
               WHERE datname = current_database()), current_database()::text";
        let row = stage.sql.query_one(COUNTERS, &[]).await?;
        let database: String = row.try_get(2)?;
        let mut relay = Duration::ZERO;
        for program in &at_work.programs {
            relay += cpu(program.pid())?;
        }
        let here = |pid: &u32| is_backend(*pid, &database);
        let local = at_work.backends.iter().chain(&at_work.walsender).any(here);
        // one that has ended has no time to add
        let time_of = |pid: &u32| cpu(*pid).ok();
        let postgres = local.then(|| Postgres {
            backends: at_work.backends.iter().filter_map(time_of).sum(),
            walsender: at_work.walsender.iter().filter_map(time_of).sum(),
        });
        let postmaster = stage.own().ok().and_then(|postgres| postgres.pid());
        Ok(Self {
            at: Instant::now(),
            relay,
            postgres,
            server: postmaster.map(cpu_of_family).transpose()?,
            redis: broker.cpu().await?,
            wal: row.try_get(0)?,
            transactions: row.try_get(1)?,
        })
    }

    /// What happened since.
    pub(super) fn until(self, later: Self) -> Cost {
        let between = |from: Duration, to: Duration| to.saturating_sub(from).as_secs_f64();
        let postgres = self.postgres.zip(later.postgres).map(|(from, to)| {
            (between(from.backends, to.backends), between(from.walsender, to.walsender))
        });
        Cost {
            took: later.at.duration_since(self.at).as_secs_f64(),
            relay: between(self.relay, later.relay),
            postgres,
            server: self.server.zip(later.server).map(|(from, to)| between(from, to)),
            redis: between(self.redis, later.redis),
            wal: later.wal - self.wal,
            transactions: later.transactions - self.transactions,
        }
    }
}

/// CPU time of a microsecond an event is CPU time of a second for a million of them.
const BACKENDS: &str = "PostgreSQL CPU, backends";
const WALSENDER: &str = "PostgreSQL CPU, walsender";

impl Cost {
    /// For each event.
    pub(super) fn per_event(&self, events: u64) -> Vec<Value> {
        let events = events as f64;
        let micros = |seconds: f64| seconds * 1e6 / events;
        let mut values = Vec::new();
        if let Some((backends, walsender)) = self.postgres {
            values.push((BACKENDS, Unit::Cpu, micros(backends)));
            values.push((WALSENDER, Unit::Cpu, micros(walsender)));
        }
        if let Some(server) = self.server {
            values.push(("PostgreSQL CPU, whole server", Unit::Cpu, micros(server)));
        }
        values.push(("relay CPU", Unit::Cpu, micros(self.relay)));
        values.push(("Redis CPU", Unit::Cpu, micros(self.redis)));
        values.push(("WAL", Unit::Bytes, self.wal / events));
        values
    }

    /// For each second.
    pub(super) fn per_second(&self) -> Vec<Value> {
        let millis = |seconds: f64| seconds * 1e3 / self.took;
        let mut values = vec![("transactions", Unit::PerSecond, self.transactions / self.took)];
        if let Some((backends, walsender)) = self.postgres {
            values.push((BACKENDS, Unit::Load, millis(backends)));
            values.push((WALSENDER, Unit::Load, millis(walsender)));
        }
        values.push(("relay CPU", Unit::Load, millis(self.relay)));
        values.push(("Redis CPU", Unit::Load, millis(self.redis)));
        values.push(("WAL", Unit::BytesPerSecond, self.wal / self.took));
        values
    }

    pub(super) fn seconds(&self) -> f64 {
        self.took
    }
}

/// Most memory that any process of the competitor held, in MiB.
pub(super) fn peak(at_work: &AtWork) -> anyhow::Result<f64> {
    let mut peak = 0.0_f64;
    for program in &at_work.programs {
        peak = peak.max(peak_mib(program.pid())?);
    }
    Ok(peak)
}
