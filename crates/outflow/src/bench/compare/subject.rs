//! What is compared: the connector, and polling relays in several forms.

use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::bench::backlog::create_slot;
use crate::bench::broker::Broker;
use crate::bench::process::{POLL, Program};
use crate::bench::stage::Stage;

/// How long a polling relay may take until it has looked for the first time.
const START_WITHIN: Duration = Duration::from_secs(30);

/// A competitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    Connector,
    Polling {
        /// Processes side by side.
        relays: u32,
        /// Time between two looks; `None`: a trigger notifies.
        interval: Option<Duration>,
    },
}

impl Subject {
    /// One polling relay.
    pub(super) const fn polling(interval: Option<Duration>) -> Self {
        Self::Polling { relays: 1, interval }
    }

    /// How late an event is at most when nothing is wrong, beyond the work itself.
    pub(super) fn delay(&self) -> Duration {
        match self {
            Self::Polling { interval: Some(interval), .. } => *interval,
            Self::Polling { interval: None, .. } | Self::Connector => Duration::ZERO,
        }
    }

    /// As tables and charts call it.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Connector => "connector".to_owned(),
            Self::Polling { relays, interval } => {
                let how = interval.map_or_else(
                    || "NOTIFY".to_owned(),
                    |interval| humantime::format_duration(interval).to_string(),
                );
                match relays {
                    1 => format!("polling {how}"),
                    _ => format!("{relays} polling {how}"),
                }
            }
        }
    }
}

/// A competitor at work.
#[derive(Debug)]
pub(super) struct AtWork {
    pub(super) programs: Vec<Program>,
    /// The connector's.
    slot: Option<String>,
    /// Since when: replication was started, or the first claim was asked for.
    pub(super) since: Instant,
    /// Backend of PostgreSQL that reads the log.
    pub(super) walsender: Option<u32>,
    /// Backends that work for the relay otherwise.
    pub(super) backends: Vec<u32>,
}

impl AtWork {
    /// Starts `subject` where the log stands, or at `slot`; returns when it is at work.
    pub(super) async fn start(
        stage: &Stage,
        broker: &Broker,
        subject: &Subject,
        slot: Option<String>,
        lease: Duration,
    ) -> anyhow::Result<Self> {
        match subject {
            Subject::Connector => Self::connector(stage, broker, slot).await,
            Subject::Polling { relays, interval } => {
                Self::polling(stage, broker, *relays, *interval, lease).await
            }
        }
    }

    async fn connector(
        stage: &Stage,
        broker: &Broker,
        slot: Option<String>,
    ) -> anyhow::Result<Self> {
        let slot = match slot {
            Some(slot) => slot,
            None => {
                let slot = stage.fresh_name();
                create_slot(stage, &slot).await?;
                slot
            }
        };
        let mut program = stage.connector(&slot, broker)?;
        let walsender = stage.walsender(&slot, &mut program).await?;
        Ok(Self {
            programs: vec![program],
            slot: Some(slot),
            since: walsender.since,
            walsender: Some(walsender.pid),
            backends: backends(stage).await?,
        })
    }

    async fn polling(
        stage: &Stage,
        broker: &Broker,
        relays: u32,
        interval: Option<Duration>,
        lease: Duration,
    ) -> anyhow::Result<Self> {
        let show = |duration| humantime::format_duration(duration).to_string();
        let lease = show(lease);
        let interval = interval.map(show);
        let mut settings = vec![("lease", lease.as_str())];
        match &interval {
            Some(interval) => settings.push(("interval", interval)),
            None => settings.push(("wake_up", "notify")),
        }
        trigger(stage, interval.is_none()).await?;
        let mut programs = Vec::new();
        for _ in 0..relays {
            programs.push(stage.polling_relay(&stage.fresh_name(), broker, &settings)?);
        }
        let started = Instant::now();
        let wanted = usize::try_from(relays).unwrap_or(usize::MAX);
        let mut since = None;
        loop {
            let backends = claiming(stage).await?;
            if !backends.is_empty() {
                since.get_or_insert_with(Instant::now);
            }
            if backends.len() >= wanted {
                let since = since.unwrap_or(started);
                return Ok(Self { programs, slot: None, since, walsender: None, backends });
            }
            for program in &mut programs {
                program.must_run()?;
            }
            if started.elapsed() > START_WITHIN {
                bail!("the polling relays did not begin to claim within 30s");
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// The slot, where there is one, to start another connector at.
    pub(super) fn slot(&self) -> Option<String> {
        self.slot.clone()
    }

    /// Stops everything in order; the slot goes too.
    pub(super) async fn stop(self, stage: &Stage) -> anyhow::Result<()> {
        for program in self.programs {
            program.stop().await?;
        }
        match self.slot {
            Some(slot) => stage.drop_slot(&slot).await,
            None => Ok(()),
        }
    }

    /// SIGKILL of every program; the slot stays.
    pub(super) async fn kill(self) -> anyhow::Result<()> {
        for program in self.programs {
            program.kill().await?;
        }
        Ok(())
    }
}

/// The trigger that notifies stands on the table only while somebody listens: its price is that
/// competitor's.
async fn trigger(stage: &Stage, wanted: bool) -> anyhow::Result<()> {
    const FIND: &str = "SELECT FROM pg_trigger \
                        WHERE tgname = 'wake_relay' AND tgrelid = 'outflow.outbox'::regclass";
    const DROP: &str = "DROP TRIGGER wake_relay ON outflow.outbox";
    const CREATE: &str = "CREATE TRIGGER wake_relay AFTER INSERT ON outflow.outbox \
                          FOR EACH STATEMENT EXECUTE FUNCTION outflow.wake_relay()";
    let present = stage.sql.query_opt(FIND, &[]).await?.is_some();
    // a relay that is started again under load must not find the table locked
    match (present, wanted) {
        (true, false) => stage.sql.batch_execute(DROP).await?,
        (false, true) => stage.sql.batch_execute(CREATE).await?,
        _ => {}
    }
    Ok(())
}

/// Ordinary backends of the program under measurement.
async fn backends(stage: &Stage) -> anyhow::Result<Vec<u32>> {
    pids(stage, "backend_type = 'client backend'").await
}

/// Backends that claim rows.
async fn claiming(stage: &Stage) -> anyhow::Result<Vec<u32>> {
    pids(stage, "query LIKE '%WITH held AS MATERIALIZED%'").await
}

async fn pids(stage: &Stage, which: &str) -> anyhow::Result<Vec<u32>> {
    let sql = format!(
        "SELECT pid FROM pg_stat_activity \
         WHERE datname = current_database() AND application_name = 'outflow' AND {which}"
    );
    let rows = stage.sql.query(&sql, &[]).await?;
    rows.iter()
        .map(|row| u32::try_from(row.try_get::<_, i32>(0)?).context("a process id below zero"))
        .collect()
}
