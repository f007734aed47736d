//! Keeps this worker's name and its leases, over a connection of its own: a long transaction of the
//! applier holds up neither.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};
use tokio_util::sync::CancellationToken;

use crate::backoff::Backoff;
use crate::consumer::Shared;
use crate::database::{self, Connect, statement_failed};
use crate::error::Error;
use crate::lease::{Balance, Held, balance};
use crate::status::Component;

/// How often to look for streams that became free, and for other workers.
const LOOK: Duration = Duration::from_millis(500);

pub(crate) struct Keeper {
    shared: Arc<Shared>,
    connect: Connect,
    stop: CancellationToken,
    session: Option<Session>,
}

struct Session {
    client: Client,
    register: Statement,
    renew: Statement,
    shares: Statement,
    acquire: Statement,
    release: Statement,
    evict: Statement,
}

impl Keeper {
    pub(crate) fn new(shared: Arc<Shared>, connect: Connect, stop: CancellationToken) -> Self {
        Self { shared, connect, stop, session: None }
    }

    /// Keeps name and leases until it is stopped. Returns an error only if waiting cannot help; then
    /// nothing is held any more.
    ///
    /// A database that is away costs the leases when their time is up, not before: the applier cannot
    /// apply anything meanwhile either.
    pub(crate) async fn run(mut self) -> Result<Self, Error> {
        let config = &self.shared.config;
        let mut backoff = Backoff::new(config.retry_first, config.retry_longest);
        while !self.stop.is_cancelled() {
            let pause = match self.look().await {
                Ok(()) => {
                    self.shared.board.moving(Component::Keeper);
                    backoff.reset();
                    LOOK.min(self.shared.config.lease / 4)
                }
                Err(error) => {
                    self.session = None;
                    let error = error.transient()?;
                    self.shared.board.waiting(Component::Keeper, &error.to_string());
                    backoff.next()
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.shared.leases.wanted() => {}
                () = self.stop.cancelled() => break,
            }
        }
        Ok(self)
    }

    /// Gives everything up at the end of the process, once nothing is in work any more, so that
    /// others need not wait. Best effort: without it they wait until the session is gone.
    pub(crate) async fn finish(self) {
        let Some(session) = self.session.as_ref() else { return };
        let held = self.shared.leases.held();
        let config = &self.shared.config;
        let given_up = async {
            session.release(&self.shared, &held).await?;
            let name: [&(dyn ToSql + Sync); 3] =
                [&config.consumer_id, &config.worker, &self.shared.instance];
            let delete = "DELETE FROM outflow.worker WHERE consumer_id = $1 AND worker = $2 AND instance = $3";
            session.client.execute(delete, &name).await
        };
        if let Err(error) = given_up.await {
            tracing::debug!("leases were not given up: {}", crate::error::Chain::new(&error));
        }
    }

    async fn look(&mut self) -> Result<(), Error> {
        let session = match self.session.as_ref().filter(|session| !session.client.is_closed()) {
            Some(_) => self.session.as_ref(),
            None => {
                let session = Session::open(&self.connect, &self.shared).await?;
                self.register(&session).await?;
                Some(&*self.session.insert(session))
            }
        };
        let Some(session) = session else { return Ok(()) };
        session.renew(&self.shared).await?;
        if self.shared.leases.is_shared() {
            return Ok(());
        }
        let in_flight = |stream| self.shared.in_flight.holds(stream);
        let idle = self.shared.leases.releasable(in_flight);
        if !idle.is_empty() {
            for held in &idle {
                self.shared.leases.lose(*held);
            }
            session.release(&self.shared, &idle).await.map_err(statement_failed)?;
            session.tell(&self.shared, "stream given up to another worker", &idle);
        }
        session.balance(&self.shared).await
    }

    /// Takes the name. Another process that has it and is alive keeps it.
    async fn register(&self, session: &Session) -> Result<(), Error> {
        let config = &self.shared.config;
        let lease = config.lease.as_secs_f64();
        let began = Instant::now();
        let mut seen = None;
        loop {
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&config.consumer_id, &config.worker, &self.shared.instance, &lease];
            let registered = session.client.query_opt(&session.register, &parameters).await;
            if let Some(row) = registered.map_err(statement_failed)? {
                let before: Option<String> = row.try_get("before").map_err(statement_failed)?;
                if let Some(before) = before.filter(|before| *before != self.shared.instance) {
                    session.supersede(&self.shared, &before).await?;
                }
                let gone = "DELETE FROM outflow.worker WHERE consumer_id = $1 AND seen_at < now() - interval '1 day'";
                let reaped = session.client.execute(gone, &[&config.consumer_id]).await;
                return reaped.map(drop).map_err(statement_failed);
            }
            let query =
                "SELECT seen_at::text FROM outflow.worker WHERE consumer_id = $1 AND worker = $2";
            let row = session.client.query_opt(query, &[&config.consumer_id, &config.worker]).await;
            let now: Option<String> = match row.map_err(statement_failed)? {
                Some(row) => row.try_get(0).map_err(statement_failed)?,
                None => None,
            };
            // it has been seen while we looked: it is alive
            let alive = seen.is_some_and(|seen| now.is_some() && seen != now);
            if alive || began.elapsed() > config.lease * 2 {
                return Err(Error::NameTaken {
                    consumer_id: config.consumer_id.clone(),
                    worker: config.worker.clone(),
                });
            }
            seen = Some(now);
            let reason = format!("another process has the name `{}`: is it alive?", config.worker);
            self.shared.board.waiting(Component::Keeper, &reason);
            tokio::select! {
                () = tokio::time::sleep(config.lease / 4) => {}
                () = self.stop.cancelled() => return Ok(()),
            }
        }
    }
}

impl Session {
    async fn open(connect: &Connect, shared: &Shared) -> Result<Self, Error> {
        let client = connect().await.map_err(database::connect_failed)?;
        database::prepare_session(&client, shared.config.apply_timeout).await?;
        let prepared = futures_util::try_join!(
            client.prepare(include_str!("sql/register.sql")),
            client.prepare(include_str!("sql/renew.sql")),
            client.prepare(include_str!("sql/shares.sql")),
            client.prepare(include_str!("sql/acquire.sql")),
            client.prepare(include_str!("sql/release.sql")),
            client.prepare(include_str!("sql/evict.sql")),
        );
        let (register, renew, shares, acquire, release, evict) =
            prepared.map_err(statement_failed)?;
        Ok(Self { client, register, renew, shares, acquire, release, evict })
    }

    async fn renew(&self, shared: &Shared) -> Result<(), Error> {
        let config = &shared.config;
        let held = if shared.leases.is_shared() { Vec::new() } else { shared.leases.held() };
        let (streams, tokens) = columns(shared, &held);
        let lease = config.lease.as_secs_f64();
        let asked = Instant::now();
        let parameters: [&(dyn ToSql + Sync); 6] =
            [&config.consumer_id, &config.worker, &shared.instance, &lease, &streams, &tokens];
        let row =
            self.client.query_one(&self.renew, &parameters).await.map_err(statement_failed)?;
        let renewed: Option<Vec<String>> = row.try_get("renewed").map_err(statement_failed)?;
        let renewed: HashSet<String> = renewed.into_iter().flatten().collect();
        for lease in held {
            if shared.key(lease.0).is_some_and(|key| renewed.contains(key)) {
                shared.leases.grant(lease, asked + config.lease);
            } else {
                shared.leases.lose(lease);
                self.tell(shared, "another worker has taken the stream", &[lease]);
            }
        }
        if row.try_get::<_, bool>("alive").map_err(statement_failed)? {
            return Ok(());
        }
        // paused for so long that another process took the name
        let source = "this worker's name was taken by another process".into();
        Err(Error::Database { source, advice: None })
    }

    async fn balance(&self, shared: &Shared) -> Result<(), Error> {
        let config = &shared.config;
        let lease = config.lease.as_secs_f64();
        let rows = self
            .client
            .query(&self.shares, &[&config.consumer_id, &lease])
            .await
            .map_err(statement_failed)?;
        let mut others = Vec::new();
        for row in rows {
            let worker: &str = row.try_get(0).map_err(statement_failed)?;
            if worker != config.worker {
                let held: i64 = row.try_get(1).map_err(statement_failed)?;
                others.push(usize::try_from(held).unwrap_or(0));
            }
        }
        let mine = shared.leases.held().len();
        match balance(shared.streams.len(), mine, &others) {
            Balance::Keep => Ok(()),
            Balance::GiveUp(number) => {
                shared.leases.give_up(number);
                Ok(())
            }
            Balance::Take(number) => self.acquire(shared, number).await,
        }
    }

    async fn acquire(&self, shared: &Shared, number: usize) -> Result<(), Error> {
        let config = &shared.config;
        let held: HashSet<usize> = shared.leases.held().into_iter().map(|held| held.0).collect();
        let wanted = shared.streams.iter().enumerate().filter(|(n, _)| !held.contains(n));
        let wanted: Vec<&str> = wanted.map(|(_, key)| &**key).collect();
        self.evict(shared, &wanted).await?;
        let lease = config.lease.as_secs_f64();
        let number = i64::try_from(number).unwrap_or(i64::MAX);
        let asked = Instant::now();
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&config.consumer_id, &config.worker, &lease, &wanted, &number];
        let rows = self.client.query(&self.acquire, &parameters).await.map_err(statement_failed)?;
        let mut taken = Vec::with_capacity(rows.len());
        for row in rows {
            let key: &str = row.try_get(0).map_err(statement_failed)?;
            let token: i64 = row.try_get(1).map_err(statement_failed)?;
            if let Some(stream) = shared.streams.iter().position(|stream| &**stream == key) {
                shared.leases.grant((stream, token), asked + config.lease);
                taken.push((stream, token));
            }
        }
        self.tell(shared, "stream taken", &taken);
        Ok(())
    }

    /// Ends the transactions of workers that did not renew their leases on these streams.
    async fn evict(&self, shared: &Shared, streams: &[&str]) -> Result<(), Error> {
        let config = &shared.config;
        let parameters: [&(dyn ToSql + Sync); 3] = [&config.consumer_id, &config.worker, &streams];
        let rows = self.client.query(&self.evict, &parameters).await.map_err(statement_failed)?;
        for row in rows {
            if row.try_get("ended").map_err(statement_failed)? {
                let other: &str = row.try_get("worker").map_err(statement_failed)?;
                tracing::warn!(
                    consumer = config.consumer_id,
                    worker = config.worker,
                    "worker {other} stands still in the middle of a transaction and did not renew its \
                     lease: its session was ended, its streams go on here"
                );
            }
        }
        Ok(())
    }

    /// Ends the transaction of the process that had this worker's name `before`.
    async fn supersede(&self, shared: &Shared, before: &str) -> Result<(), Error> {
        if database::end_transaction(&self.client, before).await? {
            tracing::warn!(
                consumer = shared.config.consumer_id,
                worker = shared.config.worker,
                "the process that had this worker's name before stands still in the middle of a \
                 transaction: its session was ended, its streams go on here"
            );
        }
        Ok(())
    }

    async fn release(&self, shared: &Shared, held: &[Held]) -> Result<(), tokio_postgres::Error> {
        let (streams, tokens) = columns(shared, held);
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&shared.config.consumer_id, &shared.config.worker, &streams, &tokens];
        self.client.execute(&self.release, &parameters).await.map(drop)
    }

    fn tell(&self, shared: &Shared, what: &str, held: &[Held]) {
        let config = &shared.config;
        for (stream, token) in held {
            tracing::info!(
                consumer = config.consumer_id,
                worker = config.worker,
                stream = shared.key(*stream),
                token,
                "{what}"
            );
        }
        if !shared.leases.is_shared() {
            shared.board.streams(shared.leases.held().len());
        }
    }
}

fn columns<'a>(shared: &'a Shared, held: &[Held]) -> (Vec<&'a str>, Vec<i64>) {
    held.iter().filter_map(|(stream, token)| Some((shared.key(*stream)?, *token))).unzip()
}
