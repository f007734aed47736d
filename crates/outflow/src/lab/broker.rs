//! The broker: a Redis of the lab's own, or one that the user names.

use std::fmt;
use std::time::Duration;

use anyhow::Context;
use outflow_sandbox::ResidentRedis;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use super::delivery::{Deliveries, Processed};
use super::event::Event;
use super::folder::{Lab, Place, quote};
use crate::failure::Refused;

/// The list that the relay pushes to.
pub(super) const EVENTS: &str = "outbox.events";
/// The hash of results, by event id.
pub(super) const PROCESSED: &str = "processed";
/// The list of entries that are no events.
pub(super) const DEAD_LETTERS: &str = "outbox.dead-letters";
/// The list that the program without an outbox pushes to.
pub(super) const DUAL_WRITE: &str = "dualwrite.events";
/// Which lab the keys above belong to.
const CLAIM: &str = "outbox.lab";

/// Connecting, and waiting for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the lab's own Redis may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// The lab's own Redis ends by itself so long after the last step. It comes back with its data.
pub(super) const IDLE_MINUTES: u32 = 60;

/// A Redis URL of the command line.
#[derive(Clone)]
pub(super) struct RedisUrl {
    text: String,
    info: ConnectionInfo,
}

impl RedisUrl {
    /// For `--redis`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let info = text
            .into_connection_info()
            .map_err(|error| format!("{error}; a URL such as redis://127.0.0.1:6379/1 is meant"))?;
        Ok(Self { text: text.to_owned(), info })
    }

    /// As it was given, secrets included.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    fn has_credentials(&self) -> bool {
        let settings = self.info.redis_settings();
        settings.username().is_some() || settings.password().is_some()
    }

    /// Which server and database, without credentials: safe to show and to keep.
    fn place(&self) -> String {
        let database = self.info.redis_settings().db();
        let address = |host: &str, port: &u16| {
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        };
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                format!("redis://{}/{database}", address(host, port))
            }
            ConnectionAddr::TcpTls { host, port, insecure, .. } => {
                let insecure = if *insecure { "#insecure" } else { "" };
                format!("rediss://{}/{database}{insecure}", address(host, port))
            }
            ConnectionAddr::Unix(path) => format!("unix://{}?db={database}", path.display()),
            other => other.to_string(),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())
    }
}

/// A connection to the lab's Redis.
pub(super) struct Broker {
    connection: MultiplexedConnection,
    info: ConnectionInfo,
    /// The beginning of a command line that reaches it.
    cli: String,
    /// The server, if it is the lab's own.
    own: Option<ResidentRedis>,
}

/// The lab's own Redis.
pub(super) fn own(lab: &Lab) -> ResidentRedis {
    ResidentRedis::new(lab.redis_home(), IDLE_MINUTES)
}

impl Broker {
    /// Connects to the Redis that this lab uses, settles on one if it has none yet, and makes sure
    /// that the keys in it are this lab's.
    pub(super) async fn connect(lab: &mut Lab) -> anyhow::Result<Self> {
        let (mut broker, place) = match choose(lab)? {
            None => (Self::start_own(lab).await?, Place::Own),
            Some(url) => {
                let (place, credentials) = (url.place(), url.has_credentials());
                (Self::reach(&url).await?, Place::Url { url: place, credentials })
            }
        };
        broker.claim(lab).await?;
        lab.settle(place)?;
        Ok(broker)
    }

    async fn start_own(lab: &Lab) -> anyhow::Result<Self> {
        let server = own(lab);
        server
            .start()
            .await
            .context("the lab's own Redis cannot be used (--redis URL names another one)")?;
        let info = ConnectionAddr::Unix(server.socket()).into_connection_info()?;
        let connection = open(&info).await?;
        let cli = format!("redis-cli -s {}", quote(&server.socket()));
        Ok(Self { connection, info, cli, own: Some(server) })
    }

    async fn reach(url: &RedisUrl) -> anyhow::Result<Self> {
        let place = url.place();
        let connection = open(&url.info).await.with_context(|| {
            format!(
                "Redis at {place} cannot be reached (start it, or name the right one with --redis; \
                 without --redis a new lab gets a Redis of its own)"
            )
        })?;
        let cli = match url.info.addr() {
            ConnectionAddr::Unix(path) => {
                format!("redis-cli -s {} -n {}", quote(path), url.info.redis_settings().db())
            }
            _ if url.has_credentials() => format!("redis-cli --askpass -u {place}"),
            _ => format!("redis-cli -u {place}"),
        };
        Ok(Self { connection, info: url.info.clone(), cli, own: None })
    }

    /// Another lab's keys, or a program's, are left alone.
    async fn claim(&mut self, lab: &Lab) -> anyhow::Result<()> {
        let claim = format!("{} {}", lab.id(), lab.dir().display());
        let there: Option<String> = self.ask(redis::cmd("GET").arg(CLAIM)).await?;
        if let Some(there) = there {
            let (id, dir) = there.split_once(' ').unwrap_or((&there, "another folder"));
            if id == lab.id() {
                return Ok(());
            }
            return Err(self.taken(&format!("holds the lab of {dir}")));
        }
        let keys = [EVENTS, PROCESSED, DEAD_LETTERS, DUAL_WRITE];
        let foreign: u64 = self.ask(redis::cmd("EXISTS").arg(&keys)).await?;
        if foreign > 0 {
            return Err(self.taken(&format!("holds keys that are not of this lab ({EVENTS}, ..)")));
        }
        let set: Option<String> =
            self.ask(redis::cmd("SET").arg(CLAIM).arg(&claim).arg("NX")).await?;
        if set.is_none() { Err(self.taken("was just taken by another lab")) } else { Ok(()) }
    }

    fn taken(&self, why: &str) -> anyhow::Error {
        Refused(format!(
            "the Redis database {why}: nothing was changed. Name another database with --redis (the \
             number at its end), or remove what is there, if nobody needs it: {} DEL {CLAIM} \
             {EVENTS} {PROCESSED} {DEAD_LETTERS} {DUAL_WRITE}",
            self.cli
        ))
        .into()
    }

    /// A line for a shell.
    pub(super) fn cli(&self, command: &str) -> String {
        format!("{} {command}", self.cli)
    }

    /// The server, if it is the lab's own.
    pub(super) fn own(&self) -> Option<&ResidentRedis> {
        self.own.as_ref()
    }

    /// A connection of a program of its own.
    pub(super) async fn another_connection(&self) -> anyhow::Result<MultiplexedConnection> {
        open(&self.info).await.context("redis")
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, command: &redis::Cmd) -> anyhow::Result<T> {
        command.query_async(&mut self.connection).await.with_context(|| {
            let words: Vec<_> = command.args_iter().take(2).map(word).collect();
            format!("redis: {}", words.join(" "))
        })
    }

    /// Puts an entry at the end of the list.
    pub(super) async fn push(&mut self, entry: &str) -> anyhow::Result<()> {
        self.ask(redis::cmd("RPUSH").arg(EVENTS).arg(entry)).await
    }

    /// How many entries wait in a list.
    pub(super) async fn length(&mut self, list: &str) -> anyhow::Result<u64> {
        self.ask(redis::cmd("LLEN").arg(list)).await
    }

    /// The first entry of the list.
    pub(super) async fn head(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        self.ask(redis::cmd("LINDEX").arg(EVENTS).arg(0)).await
    }

    /// Keeps the result of an event and takes its entry out of the list, both or neither.
    pub(super) async fn finish(
        &mut self,
        entry: &[u8],
        event_id: &str,
        result: &Processed,
    ) -> anyhow::Result<()> {
        let mut both = redis::pipe();
        both.atomic().hset(PROCESSED, event_id, serde_json::to_string(result)?);
        both.lrem(EVENTS, 1, entry);
        self.run(&both, "HSET processed, LREM outbox.events").await
    }

    /// Moves an entry that is no event from the list to the dead letters.
    pub(super) async fn set_aside(&mut self, entry: &[u8]) -> anyhow::Result<()> {
        let mut both = redis::pipe();
        both.atomic().rpush(DEAD_LETTERS, entry).lrem(EVENTS, 1, entry);
        self.run(&both, "RPUSH outbox.dead-letters, LREM outbox.events").await
    }

    async fn run(&mut self, commands: &redis::Pipeline, what: &str) -> anyhow::Result<()> {
        commands.exec_async(&mut self.connection).await.with_context(|| format!("redis: {what}"))
    }

    /// Everything that has left the outbox.
    pub(super) async fn deliveries(&mut self) -> anyhow::Result<Deliveries> {
        let results: Vec<(String, String)> = self.ask(redis::cmd("HGETALL").arg(PROCESSED)).await?;
        let entries: Vec<Vec<u8>> =
            self.ask(redis::cmd("LRANGE").arg(EVENTS).arg(&[0, -1])).await?;
        let mut all =
            Deliveries { dead_letters: self.length(DEAD_LETTERS).await?, ..Deliveries::default() };
        for (event_id, result) in results {
            match serde_json::from_str(&result) {
                Ok(result) => drop(all.processed.insert(event_id, result)),
                Err(_) => all.foreign_results.push(event_id),
            }
        }
        for entry in entries {
            match Event::read(&entry) {
                Some(event) => all.waiting.push(event),
                None => all.malformed += 1,
            }
        }
        Ok(all)
    }

    /// What is in one field of `processed`.
    pub(super) async fn result(&mut self, event_id: &str) -> anyhow::Result<Option<Processed>> {
        let text: Option<String> =
            self.ask(redis::cmd("HGET").arg(PROCESSED).arg(event_id)).await?;
        text.map(|text| serde_json::from_str(&text)).transpose().with_context(|| {
            format!(
                "redis: {PROCESSED} holds something under {event_id} that the lab has not \
                     written; remove it: {} HDEL {PROCESSED} {event_id}",
                self.cli
            )
        })
    }

    /// How many events were processed.
    pub(super) async fn results(&mut self) -> anyhow::Result<u64> {
        self.ask(redis::cmd("HLEN").arg(PROCESSED)).await
    }

    /// Empties the list of the program without an outbox.
    pub(super) async fn forget_dual_write(&mut self) -> anyhow::Result<()> {
        self.ask(redis::cmd("DEL").arg(DUAL_WRITE)).await
    }

    /// Cuts a connection off, as a restart of Redis would.
    pub(super) async fn cut(&mut self, client_id: u64) -> anyhow::Result<()> {
        let cut: u64 = self.ask(redis::cmd("CLIENT").arg("KILL").arg("ID").arg(client_id)).await?;
        anyhow::ensure!(cut == 1, "redis: CLIENT KILL found no connection {client_id}");
        Ok(())
    }

    /// Removes every key of the lab.
    pub(super) async fn remove_keys(&mut self) -> anyhow::Result<()> {
        let keys = [EVENTS, PROCESSED, DEAD_LETTERS, DUAL_WRITE, CLAIM];
        self.ask(redis::cmd("DEL").arg(&keys)).await
    }
}

/// Ends the lab's own Redis. False if it did not run.
pub(super) async fn stop(lab: &Lab) -> anyhow::Result<bool> {
    Ok(own(lab).stop(STOP_TIMEOUT).await?)
}

/// The Redis for this step: what was settled on before, and what the command line says, must agree.
/// `None`: the lab's own.
fn choose(lab: &Lab) -> anyhow::Result<Option<RedisUrl>> {
    let (url, credentials) = match (lab.place(), lab.given()) {
        (None, given) => return Ok(given.cloned()),
        (Some(Place::Own), None) => return Ok(None),
        (Some(Place::Own), Some(given)) => {
            return Err(other_redis(lab, "a Redis of its own", given));
        }
        (Some(Place::Url { url, .. }), Some(given)) if *url != given.place() => {
            return Err(other_redis(lab, url, given));
        }
        (Some(Place::Url { .. }), Some(given)) => return Ok(Some(given.clone())),
        (Some(Place::Url { url, credentials }), None) => (url, *credentials),
    };
    if credentials {
        return Err(Refused(format!(
            "the lab in {} uses {url} with credentials, which are not kept: give the URL again with \
             --redis or OUTFLOW_LAB_REDIS",
            lab.dir().display()
        ))
        .into());
    }
    let named = RedisUrl::parse(url).map_err(|why| Refused(format!("lab.json: {url}: {why}")))?;
    Ok(Some(named))
}

fn other_redis(lab: &Lab, settled: &str, given: &RedisUrl) -> anyhow::Error {
    Refused(format!(
        "the lab in {} uses {settled}, not {}: leave --redis (and OUTFLOW_LAB_REDIS) as they were, \
         name another folder with --dir, or begin again after `{}`",
        lab.dir().display(),
        given.place(),
        lab.command("clean")
    ))
    .into()
}

async fn open(info: &ConnectionInfo) -> redis::RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    Client::open(info.clone())?.get_multiplexed_async_connection_with_config(&config).await
}

fn word(argument: redis::Arg<&[u8]>) -> String {
    match argument {
        redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        _ => "..".to_owned(),
    }
}
