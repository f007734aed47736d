//! Makes of the settings what the libraries take, and says what a command still lacks.

use outflow_event::StreamNaming;
use outflow_inbox::retention::RetentionOptions;
use outflow_inbox::{ConsumerConfig, ConsumerOptions};
use outflow_pgoutput::ConnectOptions;
use outflow_relay::ConnectorConfig;
use outflow_relay::config::{OffsetConfig, SinkConfig, SourceConfig};
use outflow_relay::retention::RetentionConfig;

use super::problem::{Problem, Problems};
use super::settings::Config;

impl Config {
    /// The database with the outbox.
    ///
    /// # Errors
    /// Says how to name it.
    pub(crate) fn source_connect(&self) -> Result<ConnectOptions, Problems> {
        // an empty string takes everything from libpq's variables
        let from_environment = || {
            ["PGHOST", "PGHOSTADDR", "PGUSER", "PGDATABASE"]
                .iter()
                .any(|name| std::env::var_os(name).is_some())
        };
        if self.source.url.is_empty() && !from_environment() {
            return Err(missing("source.url", "--source URL, OUTFLOW_SOURCE__URL or PGHOST"));
        }
        connect("source.url", &self.source.url)
    }

    /// The consumer's database.
    ///
    /// # Errors
    /// Says how to name it.
    pub(crate) fn consumer_connect(&self) -> Result<ConnectOptions, Problems> {
        if self.consumer.url.is_empty() {
            return Err(missing("consumer.url", "--consumer URL or OUTFLOW_CONSUMER__URL"));
        }
        connect("consumer.url", &self.consumer.url)
    }

    /// The consumer.
    ///
    /// # Errors
    /// Says how to name it.
    pub(crate) fn consumer_id(&self) -> Result<&str, Problems> {
        if self.consumer.options.consumer_id.is_empty() {
            return Err(missing("consumer.id", "OUTFLOW_CONSUMER__ID"));
        }
        Ok(&self.consumer.options.consumer_id)
    }

    /// How stream keys are made.
    pub(crate) fn naming(&self) -> StreamNaming {
        StreamNaming::new(self.sink.stream_prefix.clone(), self.sink.partitions)
    }

    /// What the connector takes.
    ///
    /// # Errors
    /// Names what is not set.
    pub(crate) fn connector_config(&self) -> Result<ConnectorConfig, Problems> {
        let (source, sink, offset) = (&self.source, &self.sink, &self.offset);
        Ok(ConnectorConfig {
            connector: self.connector.clone(),
            source: SourceConfig {
                connect: self.source_connect()?,
                table: source.table.clone(),
                publication: source.publication.clone(),
                slot: source.slot.clone(),
                snapshot: source.snapshot,
                message_prefix: source.message_prefix.clone(),
                max_payload: source.max_payload,
                status_interval: source.status_interval,
                check_interval: source.check_interval,
                rewind_interval: source.rewind_interval,
                columns: source.columns.clone(),
                order_by: source.order_by.clone(),
            },
            sink: SinkConfig {
                redis: sink.redis.clone(),
                naming: self.naming(),
                entry_id: sink.entry_id,
                durability: sink.durability,
                batch_entries: usize::try_from(sink.batch_entries).unwrap_or(usize::MAX),
                batch_bytes: sink.batch_bytes,
                timeout: sink.timeout,
            },
            offset: OffsetConfig {
                store: offset.store,
                ledger_entries: offset.ledger_entries.into(),
                ledger_interval: offset.ledger_interval,
            },
        })
    }

    /// What the connector's retention takes.
    pub(crate) fn relay_retention(&self) -> RetentionConfig {
        let retention = &self.retention;
        RetentionConfig {
            outbox: retention.outbox,
            streams: retention.streams,
            interval: retention.interval,
            batch: retention.batch,
            consumers: retention.consumers.clone(),
        }
    }

    /// What the consumer's retention takes.
    pub(crate) fn consumer_retention(&self) -> RetentionOptions {
        let retention = &self.retention;
        RetentionOptions {
            inbox: retention.inbox,
            settled: retention.settled,
            interval: retention.interval,
            batch: retention.batch.into(),
            connectors: vec![self.connector.clone()],
        }
    }

    /// What the inbox takes.
    ///
    /// # Errors
    /// Names everything that is not set.
    pub(crate) fn consumer_config(&self) -> Result<ConsumerConfig, Problems> {
        let consumer = &self.consumer;
        let mut problems = Vec::new();
        if consumer.options.consumer_id.is_empty() {
            let message = "is not set: it names the projection, for example \"accounting\"";
            problems.push(Problem::new("consumer.id", message));
        }
        if consumer.streams.is_empty() {
            let message =
                "is not set: it lists the aggregate types to read, for example [\"order\"]";
            problems.push(Problem::new("consumer.streams", message));
        }
        if !problems.is_empty() {
            return Err(Problems(problems));
        }
        let naming = self.naming();
        let options = ConsumerOptions {
            redis: consumer.redis.as_ref().unwrap_or(&self.sink.redis).clone(),
            streams: consumer.streams.iter().flat_map(|stream| naming.keys(stream)).collect(),
            ..consumer.options.clone()
        };
        options
            .validate()
            .map_err(|error| Problems(vec![Problem::new("consumer", error.to_string())]))
    }
}

fn missing(key: &str, ways: &str) -> Problems {
    let message = format!("is not set: give it in the configuration file, or by {ways}");
    Problems(vec![Problem::new(key, message)])
}

fn connect(key: &str, url: &str) -> Result<ConnectOptions, Problems> {
    let mut options = ConnectOptions::parse(url)
        .map_err(|error| Problems(vec![Problem::new(key, error.to_string())]))?;
    options.default_application_name("outflow");
    Ok(options)
}
