//! The connector's configuration, validated: what the binary makes of its file, environment and
//! flags.

use std::time::Duration;

use outflow_broker::Target;
use outflow_event::StreamNaming;
use outflow_pgoutput::ConnectOptions;

/// Everything a connector needs to know.
#[derive(Debug, Clone)]
pub struct ConnectorConfig {
    /// Names the offset, the ledger and the metrics.
    pub connector: String,
    /// The database with the outbox.
    pub source: SourceConfig,
    /// The broker.
    pub sink: SinkConfig,
    /// Where and how often offsets are kept.
    pub offset: OffsetConfig,
}

/// The source side.
#[derive(Debug, Clone)]
pub struct SourceConfig {
    /// How to connect, for the replication link and for ordinary statements alike.
    pub connect: ConnectOptions,
    /// The outbox.
    pub table: TableName,
    /// Publication that carries the outbox's inserts.
    pub publication: String,
    /// Logical replication slot.
    pub slot: String,
    /// What happens to rows that are older than the slot.
    pub snapshot: SnapshotMode,
    /// Prefix of `pg_logical_emit_message` messages that carry events; `None` to ignore all.
    pub message_prefix: Option<String>,
    /// Largest payload in bytes; a larger one becomes a dead letter.
    pub max_payload: usize,
    /// Longest time between two status updates to PostgreSQL.
    pub status_interval: Duration,
    /// Time between two checks of publication and slot.
    pub check_interval: Duration,
    /// Time between two rewind points, copies of the slot that stay behind it; zero keeps none.
    pub rewind_interval: Duration,
    /// Names of the outbox's columns.
    pub columns: ColumnNames,
    /// Columns that order the snapshot; empty to choose by the primary key.
    pub order_by: Vec<String>,
}

/// A table with its schema.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    /// Schema.
    pub schema: String,
    /// Table.
    pub name: String,
}

impl std::fmt::Display for TableName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.schema, self.name)
    }
}

/// What happens to rows that were in the outbox before the slot existed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SnapshotMode {
    /// They are published first, before anything the slot delivers.
    Initial,
    /// They are not published.
    Never,
}

/// Which outbox column holds which part of an event.
///
/// Columns that are not named here become further fields of the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnNames {
    /// Required column.
    pub event_id: String,
    /// Required column.
    pub aggregate_type: String,
    /// Required column.
    pub aggregate_id: String,
    /// Required column.
    pub event_type: String,
    /// Required column.
    pub payload: String,
    /// Used when the table has it.
    pub seq: Column,
    /// Used when the table has it.
    pub headers: Column,
    /// Used when the table has it.
    pub created_at: Column,
    /// Columns that are left out of the entry: an outbox's own surrogate key, and what a polling
    /// relay keeps there.
    pub omit: Vec<String>,
}

/// A column that an outbox may lack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Column {
    /// Not used.
    None,
    /// Used if the table has it (a default name).
    IfPresent(String),
    /// Named by the user: missing is an error.
    Required(String),
}

impl Default for ColumnNames {
    fn default() -> Self {
        Self {
            event_id: "event_id".into(),
            aggregate_type: "aggregate_type".into(),
            aggregate_id: "aggregate_id".into(),
            event_type: "event_type".into(),
            payload: "payload".into(),
            seq: Column::IfPresent("seq".into()),
            headers: Column::IfPresent("headers".into()),
            created_at: Column::IfPresent("created_at".into()),
            omit: ["id", "claimed_by", "claimed_until", "published_at"].map(Into::into).to_vec(),
        }
    }
}

/// The broker side.
#[derive(Debug, Clone)]
pub struct SinkConfig {
    /// Where Redis is.
    pub redis: Target,
    /// Keys of the streams.
    pub naming: StreamNaming,
    /// How entry ids are made.
    pub entry_id: EntryIdMode,
    /// What an acknowledgement means.
    pub durability: Durability,
    /// Most entries in a batch.
    pub batch_entries: usize,
    /// Most bytes in a batch; a single larger event makes a batch of its own.
    pub batch_bytes: usize,
    /// Time to wait for the reply to a batch.
    pub timeout: Duration,
}

/// How entry ids are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryIdMode {
    /// From epoch and position: a stream never holds the same event twice.
    Lsn,
    /// By Redis, from its clock: a crash may repeat entries.
    Auto,
}

/// What an acknowledgement of a batch means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// In the primary's memory (and on its disk as its own `appendfsync` has it).
    Memory,
    /// On the primary's disk.
    Fsync,
    /// In the memory of this many replicas too.
    Replicas(u32),
}

/// Where offsets are kept and how much history.
#[derive(Debug, Clone)]
pub struct OffsetConfig {
    /// The store.
    pub store: OffsetStoreKind,
    /// Lines of history that the ledger keeps.
    pub ledger_entries: u64,
    /// Least time between two lines of the ledger.
    pub ledger_interval: Duration,
}

/// The two places for offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetStoreKind {
    /// In Redis, in the same transaction as the entries that they cover.
    Redis,
    /// In the table `outflow.connector_offset` of the source database, after the entries.
    Postgres,
}
