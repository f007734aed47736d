//! Publishes the rows of a snapshot, batch by batch, each with the progress that covers it.

use jiff::Timestamp;
use outflow_event::{Lsn, Position};
use outflow_pgoutput::TupleValue;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{SnapshotReader, SnapshotRow};
use crate::batch::{Batch, Encoder};
use crate::config::ConnectorConfig;
use crate::error::Error;
use crate::offset::{Offset, OffsetStore};
use crate::outbox::RowMap;
use crate::patience::watched;
use crate::publisher::Publisher;
use crate::sink::Sink;
use crate::status::{On, State};
use crate::stop::unless_stopped;

/// Publishes the rest of a snapshot that stands at `progress`, and returns the offset at which
/// streaming begins, stored. `None` if it was told to stop before that.
///
/// # Errors
/// As for reading a page and publishing a batch. Every batch is covered by the stored progress:
/// decide again from there.
///
/// # Cancel safety
/// Dropping the future is like a crash: decide again.
pub async fn publish<S: Sink, O: OffsetStore>(
    reader: &mut SnapshotReader,
    mut progress: Offset,
    config: &ConnectorConfig,
    publisher: &mut Publisher<S, O>,
    shutdown: &CancellationToken,
    give_up: &CancellationToken,
) -> Result<Option<Offset>, Error> {
    let (source, sink) = (&config.source, &config.sink);
    let names = reader.columns().iter().map(String::as_str);
    let map = RowMap::new(&source.columns, names, source.max_payload)
        .map_err(|missing| Error::Refused(missing.to_string()))?;
    let lsn = progress.end_lsn;
    let naming = sink.naming.clone();
    let mut encoder = Encoder::new(naming, sink.entry_id, progress.epoch, &config.connector);
    encoder.begin(lsn, None)?;
    info!(order = reader.order(), "publishing the rows that are older than the slot");

    let mut batch = Batch::new(&sink.redis);
    loop {
        let page = reader.next_page(sink.batch_entries, sink.batch_bytes);
        let reading = (On::Source, "reading a page of the snapshot");
        let page = watched(publisher.reporter(), reading, State::Snapshot, page);
        let Some(rows) = unless_stopped(shutdown, page).await? else { return Ok(None) };
        let complete = rows.is_empty();
        for row in rows {
            take_in(&map, &mut encoder, &mut batch, &mut progress, lsn, row)?;
        }
        progress.at = Timestamp::now();
        if complete {
            progress = progress.after_snapshot()?;
        }
        batch.cover(progress.clone());
        publisher.seal(&mut batch)?;
        publisher.publish(&batch, give_up).await?;
        fail::fail_point!("relay::snapshot_page_published");
        batch.clear();
        if complete {
            info!(events = progress.published_count, start = %progress.end_lsn, "snapshot complete");
            return Ok(Some(progress));
        }
    }
}

fn take_in(
    map: &RowMap,
    encoder: &mut Encoder,
    batch: &mut Batch,
    progress: &mut Offset,
    lsn: Lsn,
    row: SnapshotRow,
) -> Result<(), Error> {
    let index = progress.position.map_or(0, |last| last.index + 1);
    let position = Position::new(lsn, index);
    let values = || {
        row.columns.iter().map(|value| match value {
            Some(bytes) => TupleValue::Text(bytes),
            None => TupleValue::Null,
        })
    };
    let mut extra = Vec::new();
    match map.read(values(), &mut extra) {
        Ok(event) => encoder.event(batch, position, &event)?,
        Err(fault) => {
            let event_id = map.event_id(values()).unwrap_or_default();
            let named = String::from_utf8_lossy(event_id);
            warn!(%position, event_id = %named, "set aside as a dead letter of the connector: {fault}");
            encoder.dead_letter(batch, Some(position), &fault, event_id, map.named(values()))?;
        }
    }
    progress.position = Some(position);
    progress.published_count += 1;
    if let Some(snapshot) = &mut progress.snapshot {
        snapshot.last_key = row.key;
    }
    Ok(())
}
