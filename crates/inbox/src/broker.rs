//! Redis: connections, commands, and what its errors mean.

use std::collections::HashMap;
use std::time::Duration;

use outflow_broker::{Connection, Slot, Target};
use outflow_event::EntryId;
use redis::{RedisError, RedisResult, Value};

use crate::delivery::MalformedEntry;
use crate::error::Error;
use crate::reply;

/// What an error of Redis says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// On a new connection, after a while.
    Reconnect,
    /// The stream or its group is gone: build the group again.
    GroupGone,
    /// Nothing changes until a person acts.
    Fatal(&'static str),
}

/// Reads the error's code. Errors that nobody listed are waited out: a consumer that stands still
/// and says why is better than one that is gone.
pub(crate) fn verdict(error: &RedisError) -> Verdict {
    match error.code() {
        Some("NOGROUP") => Verdict::GroupGone,
        Some("WRONGTYPE") => Verdict::Fatal(
            "a key of another type stands where a stream is expected: rename it, or correct `streams`",
        ),
        Some("NOPERM") => Verdict::Fatal(
            "grant the user +xreadgroup +xack +xautoclaim +xpending +xgroup +xinfo +xrange +exists +multi \
             +exec on the streams (and +client|id +client|unblock, for quick stops)",
        ),
        Some("NOAUTH" | "WRONGPASS") => Verdict::Fatal("correct user and password in the URL"),
        Some("CROSSSLOT") => Verdict::Fatal(
            "these streams live in different slots of a cluster: run one consumer per slot",
        ),
        // LOADING READONLY MASTERDOWN CLUSTERDOWN TRYAGAIN BUSY OOM MISCONF UNBLOCKED MOVED ...
        Some(_) => Verdict::Reconnect,
        None => match error.kind() {
            redis::ErrorKind::AuthenticationFailed => {
                Verdict::Fatal("correct user and password in the URL")
            }
            redis::ErrorKind::InvalidClientConfig => Verdict::Fatal("correct the URL of Redis"),
            _ => Verdict::Reconnect,
        },
    }
}

/// The error as the consumer reports it.
pub(crate) fn failed(source: RedisError) -> Error {
    let advice = match verdict(&source) {
        Verdict::Fatal(advice) => Some(advice),
        Verdict::Reconnect | Verdict::GroupGone => None,
    };
    Error::Redis { source, advice }
}

/// Makes connections.
#[derive(Debug, Clone)]
pub(crate) struct Broker {
    target: Target,
    response_timeout: Duration,
}

impl Broker {
    pub(crate) fn new(target: Target, response_timeout: Duration) -> Self {
        Self { target, response_timeout }
    }

    /// The keys, by index, that may stand together in one command or pipeline: all of them, or in
    /// a cluster those of one slot.
    pub(crate) fn together<'a>(
        &self,
        keys: impl Iterator<Item = (usize, &'a str)>,
    ) -> Vec<Vec<usize>> {
        if !self.target.is_cluster() {
            return vec![keys.map(|(index, _)| index).collect()];
        }
        let mut by_slot = HashMap::<Slot, Vec<usize>>::new();
        for (index, key) in keys {
            by_slot.entry(Slot::for_key(key)).or_default().push(index);
        }
        by_slot.into_values().collect()
    }

    /// A connection whose replies may take `beyond` longer than usual, because a command blocks.
    ///
    /// A client that gives up in the same moment in which the server answers leaves entries
    /// pending with a reader that never saw them, so the margin is the whole response timeout.
    pub(crate) async fn connect(&self, beyond: Duration) -> RedisResult<Connection> {
        self.target.connect(self.response_timeout, self.response_timeout + beyond).await
    }
}

/// XGROUP CREATE with MKSTREAM. Returns whether the group was created; `false` when it was there.
pub(crate) async fn create_group(
    connection: &mut Connection,
    stream: &str,
    group: &str,
    from: EntryId,
) -> RedisResult<bool> {
    let created = redis::cmd("XGROUP")
        .arg("CREATE")
        .arg(stream)
        .arg(group)
        .arg(from.to_string())
        .arg("MKSTREAM")
        .exec_async(connection)
        .await;
    match created {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some("BUSYGROUP") => Ok(false),
        Err(error) => Err(error),
    }
}

/// XGROUP SETID: the group goes on after `after`.
pub(crate) async fn set_group(
    connection: &mut Connection,
    stream: &str,
    group: &str,
    after: EntryId,
) -> RedisResult<()> {
    let mut command = redis::cmd("XGROUP");
    command.arg("SETID").arg(stream).arg(group).arg(after.to_string());
    command.exec_async(connection).await
}

/// The stream's last id; zero where there is no stream.
pub(crate) async fn last_generated_id(
    connection: &mut Connection,
    stream: &str,
) -> RedisResult<EntryId> {
    let exists: bool = redis::cmd("EXISTS").arg(stream).query_async(connection).await?;
    if !exists {
        return Ok(EntryId::ZERO);
    }
    let info: Value = redis::cmd("XINFO").arg("STREAM").arg(stream).query_async(connection).await?;
    let id = reply::lookup(info, "last-generated-id");
    id.and_then(reply::entry_id).ok_or_else(|| reply::unexpected("XINFO STREAM"))
}

/// Fills in the raw bytes of malformed entries, as they stand in their streams.
pub(crate) async fn read_raw(
    connection: &mut Connection,
    streams: &[String],
    entries: &mut [MalformedEntry],
) -> RedisResult<()> {
    for entry in entries.iter_mut() {
        let id = entry.id.to_string();
        let mut range = redis::cmd("XRANGE");
        range.arg(streams.get(entry.stream)).arg(&id).arg(&id);
        let found: Value = range.query_async(connection).await?;
        // deleted in the meantime: the reason and the id are kept
        entry.raw = reply::raw(&found).ok_or_else(|| reply::unexpected("XRANGE"))?;
    }
    Ok(())
}

/// A pending entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pending {
    /// Whose it is.
    pub(crate) worker: Vec<u8>,
    /// How often it was delivered.
    pub(crate) times: u64,
}

/// The pending entries of `group` from `first` to `last`, at most `count` of them.
pub(crate) async fn pending(
    connection: &mut Connection,
    (stream, group): (&str, &str),
    (first, last): (EntryId, EntryId),
    count: usize,
) -> RedisResult<HashMap<EntryId, Pending>> {
    let mut command = redis::cmd("XPENDING");
    command.arg(stream).arg(group).arg(first.to_string()).arg(last.to_string()).arg(count);
    reply::pending(command.query_async(connection).await?)
        .ok_or_else(|| reply::unexpected("XPENDING"))
}

/// Removes workers of `group` that have nothing pending: earlier processes of `worker`, and others that have
/// been idle for longer than `stale`; not `me`. A script, because DELCONSUMER drops what is pending at that
/// moment. Returns their names.
pub(crate) async fn reap(
    connection: &mut Connection,
    (stream, group): (&str, &str),
    (me, worker): (&str, &str),
    stale: Duration,
) -> RedisResult<Vec<String>> {
    let stale = u64::try_from(stale.as_millis()).unwrap_or(u64::MAX);
    let mut script = redis::cmd("EVAL");
    script.arg(include_str!("reap.lua")).arg(1).arg(stream);
    script.arg(group).arg(me).arg(stale).arg(format!("{worker}:"));
    script.query_async(connection).await
}

/// What Redis knows about a group: how far it is, for certain, and how much is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Every entry up to here was delivered and acknowledged.
    pub(crate) done: EntryId,
    /// Entries not delivered yet plus those pending; `None` where Redis cannot tell.
    pub(crate) lag: Option<u64>,
}

/// Reads the progress of `group` in one instant (MULTI/EXEC): an entry that is neither pending nor
/// beyond the last delivered one was acknowledged. `None` without the group.
pub(crate) async fn progress(
    connection: &mut Connection,
    stream: &str,
    group: &str,
) -> RedisResult<Option<Progress>> {
    let mut pipe = redis::pipe();
    pipe.atomic();
    pipe.cmd("XPENDING").arg(stream).arg(group);
    pipe.cmd("XINFO").arg("GROUPS").arg(stream);
    let answer: RedisResult<(Value, Value)> = pipe.query_async(connection).await;
    let (pending, groups) = match answer {
        Ok(answer) => answer,
        Err(error) if is_missing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    Ok(reply::progress(pending, groups, group))
}

/// Without a group, XPENDING answers NOGROUP; without a stream, XINFO answers `no such key`. Inside
/// of EXEC the client reports both as failures of a pipeline.
fn is_missing(error: &RedisError) -> bool {
    let missing = |code: &str, detail: Option<&str>| {
        code == "NOGROUP" || detail.is_some_and(|detail| detail.starts_with("no such key"))
    };
    match error.code() {
        Some("NOGROUP") => true,
        _ => error.clone().into_server_errors().is_some_and(|errors| {
            errors.iter().any(|(_, error)| missing(error.code(), error.details()))
        }),
    }
}
