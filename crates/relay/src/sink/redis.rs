//! The Redis Streams sink.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use outflow_broker::{Connection, Outcome, Packed, Slot};
use outflow_event::EntryId;
use redis::{Cmd, RedisResult, Value, cmd};
use tracing::debug;

use super::Sink;
use super::connection::RedisLink;
use super::refusal::{classify, classify_server_error};
use crate::batch::{Batch, Identity, Part, StreamSpan, WrittenEntry};
use crate::config::{Durability, EntryIdMode, SinkConfig};
use crate::error::Error;
use crate::offset::{offset_key, script_outcome};

/// Publishes batches to Redis Streams over a connection of its own.
#[derive(Debug)]
pub struct RedisSink {
    link: RedisLink,
    durability: Durability,
    mode: EntryIdMode,
    cluster: bool,
    timeout: Duration,
    connector: String,
    /// A batch that Redis has taken, over the present connection, and whose durability is still to
    /// be reached.
    taken: Option<Identity>,
    acked: Acknowledged,
}

/// What Redis has acknowledged so far: on a new connection it must still be there. New entries would
/// stand above those that were lost, which could never be put below them again.
#[derive(Debug, Default)]
struct Acknowledged {
    /// The offset, where it is written with the entries: it tells for all of them.
    offset: Option<EntryId>,
    /// Else the last entry of each stream.
    streams: HashMap<Vec<u8>, EntryId>,
}

/// An entry as Redis replies with it: its id, then names and values.
type Record = (String, Vec<(Vec<u8>, Vec<u8>)>);

/// Redis's words for an id that is not above the stream's last one (XADD).
const ID_REFUSED: &str = "equal or smaller than the target stream top item";

impl RedisSink {
    /// A sink that connects when it is first used.
    #[must_use]
    pub fn new(config: &SinkConfig, connector: &str) -> Self {
        Self {
            link: RedisLink::new(config.redis.clone(), config.timeout),
            durability: config.durability,
            mode: config.entry_id,
            cluster: config.redis.is_cluster(),
            timeout: config.timeout,
            connector: connector.to_owned(),
            taken: None,
            acked: Acknowledged::default(),
        }
    }

    /// Sends the transactions of a batch, side by side where there are several, and checks every
    /// reply: an entry was added, or it was there before.
    async fn transact(&mut self, batch: &Batch) -> Result<(), Error> {
        if !self.link.is_connected() {
            self.must_be_transactional().await?;
            self.look_for_acknowledged().await?;
        }
        let connection = self.link.get().await?.clone();
        let sent = batch.parts().map(|part| execute(connection.clone(), part));
        // every one of them is waited for: what is sent again later must not meet one under way
        let answered = join_all(sent).await;
        for (part, outcomes) in batch.parts().zip(answered) {
            let outcomes = outcomes?;
            self.check(part, &outcomes).await?;
            if let (Some(saved), Some(offset)) = (outcomes.get(part.entries()), batch.offset()) {
                script_outcome(saved, &self.connector, offset)?;
            }
        }
        Ok(())
    }

    /// Where MULTI is not permitted, the commands behind it would be done one by one: an empty transaction shows
    /// it. A cluster's client asks its nodes by key, and there is none.
    async fn must_be_transactional(&mut self) -> Result<(), Error> {
        if self.cluster {
            return Ok(());
        }
        let connection = self.link.get().await?;
        let nothing = connection.transaction(&Packed::default()).await;
        nothing.map(drop).map_err(|error| classify(&error))
    }

    async fn look_for_acknowledged(&mut self) -> Result<(), Error> {
        let connection = self.link.get().await?;
        if let Some(acked) = self.acked.offset {
            let mut newest = cmd("XREVRANGE");
            newest.arg(offset_key(&self.connector)).arg("+").arg("-").arg("COUNT").arg(1);
            let newest: Vec<Record> =
                newest.query_async(connection).await.map_err(|error| classify(&error))?;
            let stored = newest.into_iter().next().map(|(id, _)| id);
            let known = stored.as_ref().and_then(|id| id.parse::<EntryId>().ok());
            if known.is_none_or(|known| known < acked) {
                return Err(Error::EntriesLost { acked: acked.to_string(), stored });
            }
        }
        for (key, acked) in &self.acked.streams {
            let last = last_id(connection, key).await?;
            if last.is_none_or(|last| last < *acked) {
                let stream = String::from_utf8_lossy(key).into_owned();
                return Err(Error::StreamBehind { stream, acked: acked.to_string() });
            }
        }
        Ok(())
    }

    fn acknowledged(&mut self, batch: &Batch) -> Result<(), Error> {
        let sealed = batch.parts().any(Part::is_sealed);
        match batch.offset() {
            Some(offset) if sealed => self.acked.offset = Some(offset.resume_point().entry_id()?),
            _ => {
                let ids = |span: &StreamSpan| Some((span.key.clone(), span.ids?.1));
                self.acked.streams.extend(batch.streams().iter().filter_map(ids));
            }
        }
        Ok(())
    }

    async fn check(&mut self, part: &Part, outcomes: &[Outcome]) -> Result<(), Error> {
        if outcomes.iter().all(Result::is_ok) {
            return Ok(());
        }
        for (entry, outcome) in part.written().zip(outcomes) {
            let Err(error) = outcome else { continue };
            let refused_id = error.details().is_some_and(|text| text.contains(ID_REFUSED));
            if !refused_id || self.mode == EntryIdMode::Auto {
                return Err(classify_server_error(error));
            }
            self.verify_present(entry).await?;
            debug!(
                id = %String::from_utf8_lossy(entry.id),
                "entry was already published"
            );
        }
        Ok(())
    }

    /// An id was refused: that is success only if the entry at that id is ours.
    async fn verify_present(&mut self, entry: WrittenEntry<'_>) -> Result<(), Error> {
        let connection = self.link.get().await?;
        let found: Vec<Record> = cmd("XRANGE")
            .arg(entry.key)
            .arg(entry.id)
            .arg(entry.id)
            .query_async(connection)
            .await
            .map_err(|error| classify(&error))?;
        let event_id = found.first().and_then(|(_, fields)| {
            fields.iter().find(|(name, _)| name == b"event_id").map(|(_, value)| value.as_slice())
        });
        if event_id == Some(entry.event_id) {
            return Ok(());
        }
        let (key, id) = (String::from_utf8_lossy(entry.key), String::from_utf8_lossy(entry.id));
        let own = String::from_utf8_lossy(entry.event_id);
        let there = match event_id {
            None => "there is no entry with that id".to_owned(),
            Some(other) => format!("that id holds event `{}`", String::from_utf8_lossy(other)),
        };
        Err(Error::SinkRefused(format!(
            "stream `{key}` refuses id {id} of event `{own}` as not above its last one, and \
             {there}: the stream was written by something else, or was restored from another \
             source; inspect it with XINFO STREAM, and publish to another sink.stream_prefix or \
             move the stream away"
        )))
    }

    /// Waits until what was written is as durable as configured, on every node that was written to.
    async fn await_durability(&mut self, batch: &Batch) -> Result<(), Error> {
        let millis = u64::try_from(self.timeout.as_millis() / 2).unwrap_or(u64::MAX).max(1);
        let (wait, wanted) = match self.durability {
            Durability::Memory => return Ok(()),
            Durability::Fsync => (cmd("WAITAOF").arg(1).arg(0).arg(millis).take(), 1),
            Durability::Replicas(replicas) => {
                (cmd("WAIT").arg(replicas).arg(millis).take(), i64::from(replicas))
            }
        };
        let connection = self.link.get().await?.clone();
        let waits = batch
            .parts()
            .map(|part| Ok(reach(connection.clone(), self.barrier(part)?, wait.clone())))
            .collect::<Result<Vec<_>, Error>>()?;
        for reached in join_all(waits).await {
            let reached = reached?;
            if reached < wanted {
                return Err(Error::Undurable { reached, wanted, millis });
            }
        }
        Ok(())
    }

    /// A key of ours in the slot of `part`.
    fn barrier(&self, part: &Part) -> Result<Vec<u8>, Error> {
        let Some(key) = part.written().next().filter(|_| self.cluster).map(|entry| entry.key)
        else {
            return Ok(format!("outflow:barrier:{{{}}}", self.connector).into_bytes());
        };
        let barrier = match key.contains(&b'{') {
            true => [b"outflow:barrier:", key].concat(),
            false => [b"outflow:barrier:{", key, b"}"].concat(),
        };
        if Slot::for_key(&barrier) == Slot::for_key(key) {
            return Ok(barrier);
        }
        Err(Error::SinkRefused(format!(
            "stream `{}` has a brace in its name: in a cluster, sink.durability needs names \
             without any; set sink.durability = \"memory\", or rename the aggregate type",
            String::from_utf8_lossy(key)
        )))
    }
}

/// The stream's `last-generated-id`, which survives trimming (Redis documentation, XINFO STREAM);
/// `None` without the stream.
async fn last_id(connection: &mut Connection, key: &[u8]) -> Result<Option<EntryId>, Error> {
    let info: RedisResult<HashMap<String, Value>> =
        cmd("XINFO").arg("STREAM").arg(key).query_async(connection).await;
    match info {
        Ok(info) => {
            let id = info.get("last-generated-id");
            let id = id.and_then(|id| redis::from_redis_value_ref::<String>(id).ok());
            Ok(id.and_then(|id| id.parse().ok()))
        }
        Err(error) if error.detail().is_some_and(|detail| detail.contains("no such key")) => {
            Ok(None)
        }
        Err(error) => Err(classify(&error)),
    }
}

/// Sends one transaction. Returns what became of each of its commands.
async fn execute(mut connection: Connection, part: &Part) -> Result<Vec<Outcome>, Error> {
    let commands = part.commands();
    let replies = connection.transaction(commands).await.map_err(|error| classify(&error))?;
    if replies.len() == commands.len() {
        return Ok(replies);
    }
    let (got, sent) = (replies.len(), commands.len());
    Err(Error::SinkUnavailable(format!("{got} replies to {sent} commands")))
}

/// What WAIT or WAITAOF reached (Redis documentation, WAIT and WAITAOF). Both look at the
/// connection's own last write, which a retried batch may lack: so there is always one.
async fn reach(mut connection: Connection, barrier: Vec<u8>, wait: Cmd) -> Result<i64, Error> {
    let mut pipe = redis::pipe();
    pipe.cmd("SET").arg(barrier).arg("").ignore();
    pipe.add_command(wait);
    let (reply,): (Value,) =
        pipe.query_async(&mut connection).await.map_err(|error| classify(&error))?;
    let reached = match reply {
        Value::Array(parts) => parts.into_iter().next(),
        reply => Some(reply),
    };
    Ok(match reached {
        Some(Value::Int(reached)) => reached,
        _ => 0,
    })
}

impl Sink for RedisSink {
    async fn publish(&mut self, batch: &Batch) -> Result<(), Error> {
        if batch.parts().next().is_none() {
            return Ok(());
        }
        let identity = batch.identity();
        let result = match self.taken.filter(|taken| Some(*taken) == identity) {
            Some(_) => Ok(()),
            None => self.transact(batch).await,
        };
        let result = match result {
            Ok(()) => self.await_durability(batch).await,
            refused => refused,
        };
        if matches!(result, Err(Error::Undurable { .. })) {
            self.taken = identity;
            return result;
        }
        self.taken = None;
        let result = result.and_then(|()| self.acknowledged(batch));
        if result.is_err() {
            // an answer that comes late, or from a server that is no primary any more, must not
            // be taken for the answer to the next try
            self.link.reset();
        }
        result
    }
}
