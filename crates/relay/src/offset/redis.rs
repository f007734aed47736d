//! Offsets in Redis, the default: the offset moves in the same transaction as the entries that it
//! covers, so they stand and fall together.
//!
//! The offset is the only record of a stream, under the id of its resume point. Redis refuses an
//! id that is not above the stream's last one (Redis documentation, XADD), so an offset can never
//! go back, whoever writes it. The ledger is a second stream with the same ids.

use jiff::Timestamp;
use outflow_event::{Epoch, Lsn, Position};
use redis::{Cmd, FromRedisValue, cmd};

use super::{
    LedgerPace, Offset, OffsetStore, SnapshotProgress, ledger_key, offset_key, replaced_meanwhile,
    save_command, script_outcome,
};
use crate::config::OffsetConfig;
use crate::error::Error;
use crate::sink::classify;
use crate::sink::connection::RedisLink;

/// Keeps offsets in Redis.
///
/// Holds a connection of its own, made when it is first needed and made anew after a failure.
#[derive(Debug)]
pub struct RedisOffsetStore {
    link: RedisLink,
    connector: String,
    ledger_entries: u64,
    pace: LedgerPace,
}

/// An entry of a stream as Redis replies with it: its id, then names and values.
type Record = (String, Vec<(String, String)>);

impl RedisOffsetStore {
    /// A store for the offset of `connector`. Does not connect yet.
    #[must_use]
    pub fn new(link: RedisLink, connector: &str, config: &OffsetConfig) -> Self {
        Self {
            link,
            connector: connector.to_owned(),
            ledger_entries: config.ledger_entries,
            pace: LedgerPace::new(config.ledger_interval),
        }
    }

    /// Sends a command; after a failure the next one goes over a new connection, so that a late
    /// reply is never taken for the answer to another question.
    async fn query<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, Error> {
        let result = command.query_async(self.link.get().await?).await;
        result.map_err(|error| {
            self.link.reset();
            classify(&error)
        })
    }

    /// Puts `new` in the place of the stored offset, even if it lies below, and adds a line for both
    /// to the ledger. `expected` is the stored offset; `None` where it is absent or unreadable.
    ///
    /// All or nothing: the stream of the offset refuses lower ids, so it is deleted and written anew
    /// in one transaction.
    ///
    /// # Errors
    /// Refused when another offset than `expected` is stored: nothing was changed. Transient when
    /// the outcome is unknown: load and compare.
    pub async fn replace(&mut self, expected: Option<&Offset>, new: &Offset) -> Result<(), Error> {
        let (key, ledger) = (offset_key(&self.connector), ledger_key(&self.connector));
        self.query::<()>(cmd("WATCH").arg(&key)).await?;
        let stored = match self.load().await {
            Err(Error::BadRecord { .. }) => None,
            loaded => loaded?,
        };
        if stored.as_ref() != expected {
            self.link.reset();
            return Err(replaced_meanwhile(&self.connector));
        }
        let last = self.newest(&ledger, 1).await?.first().map(Offset::resume_point);
        let mut pipe = redis::pipe();
        pipe.atomic();
        let old = stored.filter(|old| last.is_none_or(|last| last < old.resume_point()));
        if let Some(old) = old.filter(|_| self.ledger_entries > 0) {
            pipe.cmd("XADD").arg(&ledger).arg("MAXLEN").arg("~").arg(self.ledger_entries);
            pipe.arg(old.resume_point().entry_id()?.to_string()).arg(old.to_fields()).ignore();
        }
        pipe.cmd("DEL").arg(&key).ignore();
        pipe.add_command(save_command(&self.connector, new, self.ledger_entries, &[])?);
        let connection = self.link.get().await?;
        let replies: Option<Vec<redis::Value>> = match pipe.query_async(connection).await {
            Ok(replies) => replies,
            Err(error) => {
                self.link.reset();
                return Err(classify(&error));
            }
        };
        // nobody has touched the key since WATCH, or the transaction was not run
        replies.map(|_| ()).ok_or_else(|| replaced_meanwhile(&self.connector))
    }

    /// The newest `limit` records of a stream, newest first.
    async fn newest(&mut self, key: &str, limit: usize) -> Result<Vec<Offset>, Error> {
        let mut command = cmd("XREVRANGE");
        command.arg(key).arg("+").arg("-").arg("COUNT").arg(limit);
        let records: Vec<Record> = self.query(&command).await?;
        records.iter().map(|(id, fields)| read_record(key, id, fields)).collect()
    }
}

impl OffsetStore for RedisOffsetStore {
    async fn load(&mut self) -> Result<Option<Offset>, Error> {
        let key = offset_key(&self.connector);
        let stored = self.newest(&key, 1).await?.into_iter().next();
        if stored.is_none() && self.query::<bool>(cmd("EXISTS").arg(&key)).await? {
            // its last id would go on to refuse every offset below, and nobody could say why
            return Err(Error::BadRecord {
                what: format!("the offset in redis key `{key}`"),
                why: "the key is there but its record was removed; `outflow offsets reset \
                      --from-rows` or `--from-slot` writes a new one"
                    .to_owned(),
            });
        }
        let ledger = ledger_key(&self.connector);
        if let Some(line) = self.newest(&ledger, 1).await?.first() {
            self.pace.written(line.at);
        }
        Ok(stored)
    }

    async fn save(&mut self, offset: &Offset) -> Result<(), Error> {
        let ledger_length = if self.pace.due(offset.at) { self.ledger_entries } else { 0 };
        let command = save_command(&self.connector, offset, ledger_length, &[])?;
        // a refusal of the script is a reply, not an error of the connection: read it as one
        let mut pipe = redis::pipe();
        pipe.add_command(command).ignore_errors();
        let connection = self.link.get().await?;
        let replies: Vec<redis::Value> = match pipe.query_async(connection).await {
            Ok(replies) => replies,
            Err(error) => {
                self.link.reset();
                return Err(classify(&error));
            }
        };
        let outcome = match replies.into_iter().next() {
            Some(redis::Value::ServerError(error)) => Err(error),
            Some(_) => Ok(()),
            None => return Err(Error::SinkUnavailable("no reply to a script".to_owned())),
        };
        script_outcome(&outcome, &self.connector, offset)?;
        if ledger_length > 0 {
            self.pace.written(offset.at);
        }
        Ok(())
    }

    async fn ledger(&mut self, limit: usize) -> Result<Vec<Offset>, Error> {
        let key = ledger_key(&self.connector);
        self.newest(&key, limit).await
    }
}

impl Offset {
    /// The offset as names and values of a Redis record. What is absent has no field.
    #[must_use]
    pub fn to_fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("system_identifier", self.system_identifier.clone()),
            ("timeline", self.timeline.to_string()),
            ("slot", self.slot.clone()),
            ("epoch", self.epoch.to_string()),
        ];
        fields.extend(self.position.map(|position| ("position", position.to_string())));
        fields.push(("end_lsn", self.end_lsn.to_string()));
        fields.extend(self.commit_time.map(|time| ("commit_time", time.to_string())));
        fields.push(("published_count", self.published_count.to_string()));
        fields.push(("at", self.at.to_string()));
        fields.extend(self.snapshot.as_ref().map(|progress| ("snapshot", progress.to_json())));
        fields
    }
}

fn read_record(key: &str, id: &str, fields: &[(String, String)]) -> Result<Offset, Error> {
    let bad = |why| Error::BadRecord { what: format!("record {id} of redis key `{key}`"), why };
    let offset = from_fields(fields).map_err(bad)?;
    if offset.resume_point().entry_id()?.to_string() != id {
        // a record that was written by hand under another id would fence at the wrong place
        return Err(bad("its fields and its id name different positions".to_owned()));
    }
    Ok(offset)
}

fn from_fields(fields: &[(String, String)]) -> Result<Offset, String> {
    let find = |name: &str| {
        fields.iter().find_map(|(field, value)| (field == name).then_some(value.as_str()))
    };
    let text = |name: &'static str| find(name).ok_or_else(|| format!("it has no field `{name}`"));
    Ok(Offset {
        system_identifier: text("system_identifier")?.to_owned(),
        timeline: parse("timeline", text("timeline")?)?,
        slot: text("slot")?.to_owned(),
        epoch: Epoch(parse("epoch", text("epoch")?)?),
        position: find("position").map(|value| parse::<Position>("position", value)).transpose()?,
        end_lsn: parse::<Lsn>("end_lsn", text("end_lsn")?)?,
        commit_time: find("commit_time")
            .map(|value| parse::<Timestamp>("commit_time", value))
            .transpose()?,
        published_count: parse("published_count", text("published_count")?)?,
        at: parse("at", text("at")?)?,
        snapshot: find("snapshot").map(SnapshotProgress::from_json).transpose()?,
    })
}

fn parse<T: std::str::FromStr>(name: &'static str, value: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("field `{name}` holds `{value}`"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    prop_compose! {
        fn offsets()(
            system in any::<u64>(),
            timeline in any::<u32>(),
            epoch in any::<u8>(),
            position in proptest::option::of((1..1u64 << 56, 0..u64::MAX)),
            end_lsn in 1..1u64 << 56,
            times in (0..4_000_000_000_000_000i64, 0..4_000_000_000_000_000i64),
            published_count in any::<u64>(),
            snapshot in proptest::option::of((".*", proptest::collection::vec(".*", 0..3))),
        ) -> Offset {
            Offset {
                system_identifier: system.to_string(),
                timeline,
                slot: "outflow".into(),
                epoch: Epoch(epoch),
                position: position.map(|(lsn, index)| Position::new(Lsn::from(lsn), index)),
                end_lsn: Lsn::from(end_lsn),
                commit_time: position.map(|_| Timestamp::from_microsecond(times.0).unwrap()),
                published_count,
                at: Timestamp::from_microsecond(times.1).unwrap(),
                snapshot: snapshot.map(|(visible, last_key)| SnapshotProgress {
                    visible,
                    lsn: Lsn::from(end_lsn).to_string(),
                    start: None,
                    last_key,
                }),
            }
        }
    }

    proptest! {
        #[test]
        fn an_offset_reads_back_as_it_was_written(offset in offsets()) {
            let fields: Vec<_> =
                offset.to_fields().into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            prop_assert_eq!(from_fields(&fields), Ok(offset));
        }
    }

    #[test]
    fn a_record_that_cannot_be_read_names_the_field() {
        let fields = [("system_identifier".to_owned(), "7".to_owned())];
        assert_eq!(from_fields(&fields), Err("it has no field `timeline`".to_owned()));
        let fields = [fields[0].clone(), ("timeline".to_owned(), "one".to_owned())];
        assert_eq!(from_fields(&fields), Err("field `timeline` holds `one`".to_owned()));
    }
}
