//! A session in replication mode, before it streams.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    task::JoinHandle,
};
use tokio_postgres::{
    AsyncMessage, Connection, NoTls,
    config::{Host, SslMode as PgSslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::{
    ConnectOptions, Error,
    config::{SslMode, Target},
    error::ServerError,
    query::Row,
    startup::{self, Session},
    tls,
};

/// A link in replication mode (`replication=database`), for commands; [`start_replication`] turns it into a
/// [`ReplicationStream`].
///
/// It speaks to the server only inside its methods. A method whose future was dropped before it completed
/// leaves an answer on the link: drop the client then, and connect again.
///
/// [`start_replication`]: Self::start_replication
/// [`ReplicationStream`]: crate::ReplicationStream
pub struct ReplicationClient {
    pub(crate) session: Session,
    pub(crate) options: ConnectOptions,
}

/// An ordinary SQL connection and the task that drives it. The task ends when the client is dropped, or with
/// the error that broke the connection.
#[derive(Debug)]
pub struct SqlConnection {
    /// The client.
    pub client: tokio_postgres::Client,
    /// The task that moves its bytes.
    pub connection: JoinHandle<Result<(), tokio_postgres::Error>>,
}

impl ReplicationClient {
    /// Opens a session in replication mode on the first host that gives one.
    ///
    /// The session settings that the text of values depends on are pinned (`DateStyle`, `IntervalStyle`,
    /// `TimeZone`, `bytea_output`, `extra_float_digits`, `client_encoding`, `client_min_messages`), whatever
    /// the role, the database or the connection string say.
    ///
    /// # Errors
    /// The error of the last host tried: [`Error::retry`] tells whether to try again. [`Error::Pooler`] if
    /// the address belongs to pgbouncer or its kind.
    ///
    /// # Cancel safety
    /// Dropping the future closes the half-open connection.
    pub async fn connect(options: &ConnectOptions) -> Result<Self, Error> {
        let mut last = None;
        for target in startup::resolve(options).await? {
            let attempt = async {
                let session = startup::open(options, &target).await?;
                let mut client = Self { session, options: options.clone() };
                client.check_session_attrs().await?;
                Ok(client)
            };
            let attempt = tokio::time::timeout(options.connect_timeout(), attempt).await;
            match attempt.unwrap_or_else(|_| Err(startup::timed_out(&target, options))) {
                Ok(client) => return Ok(client),
                Err(e) => last = keep(last, e),
            }
        }
        Err(last.unwrap_or(Error::Closed))
    }

    /// Host and port of this session, or the path of its Unix socket.
    pub fn host(&self) -> &str {
        &self.session.host
    }

    /// Process id of the walsender, as in `pg_stat_replication`.
    pub fn process_id(&self) -> u32 {
        self.session.process_id
    }

    /// A parameter that the server reported, such as `server_version` or `DateStyle`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.session.parameters.get(name).map(String::as_str)
    }

    /// Major version of the server; 0 if it did not say.
    pub fn server_major(&self) -> u32 {
        let version = self.parameter("server_version").unwrap_or_default();
        let digits = version.find(|c: char| !c.is_ascii_digit()).unwrap_or(version.len());
        version.get(..digits).and_then(|major| major.parse().ok()).unwrap_or(0)
    }

    /// Runs SQL or a replication command in the simple query protocol and gives the rows of all its results.
    ///
    /// # Errors
    /// [`Error::Server`] if the server refuses; the session is usable afterwards. Others end it.
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the client if the future is dropped.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<Row>, Error> {
        let mut out = BytesMut::new();
        frontend::query(sql, &mut out)
            .map_err(|_| Error::Config("a zero byte in a query".into()))?;
        self.session.wire.send(&out).await?;
        let mut rows = Vec::new();
        let mut failure = None;
        loop {
            let answer = self.session.wire.next().await?;
            match answer.tag {
                b'D' => rows.push(Row::parse(&answer.body)?),
                // row description, command complete, empty query
                b'T' | b'C' | b'I' => {}
                b'E' => {
                    let error = ServerError::parse(&answer.body);
                    // after FATAL the server closes: no ReadyForQuery will come
                    if error.severity == "FATAL" || error.severity == "PANIC" {
                        return Err(error.into());
                    }
                    failure = Some(error);
                }
                b'N' => startup::notice(&answer.body),
                b'S' => {
                    let (name, value) = startup::parameter(&answer.body)?;
                    self.session.parameters.insert(name, value);
                }
                b'Z' => return failure.map_or(Ok(rows), |e| Err(e.into())),
                _ => return Err(answer.unexpected("a query")),
            }
        }
    }

    async fn check_session_attrs(&mut self) -> Result<(), Error> {
        let wanted = match self.options.as_tokio_postgres().get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => "read-write",
            TargetSessionAttrs::ReadOnly => "read-only",
            _ => return Ok(()),
        };
        let rows = self.simple_query("SHOW transaction_read_only").await?;
        let read_only = rows.first().and_then(|row| row.get(0)) == Some("on");
        let actual = if read_only { "read-only" } else { "read-write" };
        if actual == wanted {
            return Ok(());
        }
        Err(Error::SessionAttrs { host: self.session.host.clone(), actual, wanted })
    }

    /// Turns an error of a slot command into [`Error::Standby`] if that is what is behind it.
    pub(crate) async fn explain(&mut self, e: Error) -> Error {
        let Error::Server(server) = &e else { return e };
        // not supported in recovery (15), no such slot here (16 and later), not in prerequisite state
        if !matches!(server.code.code(), "0A000" | "42704" | "55000" | "25006") {
            return e;
        }
        match self.simple_query("SELECT pg_catalog.pg_is_in_recovery()").await {
            Ok(rows) if rows.first().and_then(|row| row.get(0)) == Some("t") => {
                Error::Standby { host: self.session.host.clone(), reason: server.message.clone() }
            }
            Ok(_) | Err(_) => e,
        }
    }
}

/// Moves the bytes of a connection until it ends.
fn drive<S, T>(
    mut connection: Connection<S, T>,
    bell: Option<Arc<Notify>>,
) -> JoinHandle<Result<(), tokio_postgres::Error>>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(bell) = bell else { return tokio::spawn(connection) };
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(_) = message? {
                bell.notify_one();
            }
        }
        Ok(())
    })
}

/// Of several failures the one that a person can do something about, else the last.
fn keep(last: Option<Error>, e: Error) -> Option<Error> {
    match last {
        Some(last)
            if last.retry() == crate::Retry::Fatal && e.retry() == crate::Retry::Transient =>
        {
            Some(last)
        }
        _ => Some(e),
    }
}

impl ConnectOptions {
    /// Opens an ordinary SQL connection to the first host that gives one, with the same hosts, TLS and
    /// password rules as the replication link. Session settings are the server's own.
    ///
    /// # Errors
    /// The error of the last host tried.
    ///
    /// # Cancel safety
    /// Dropping the future closes the half-open connection.
    pub async fn connect_sql(&self) -> Result<SqlConnection, Error> {
        self.connect_any(None).await
    }

    /// As [`Self::connect_sql`]; `bell` is notified of every notification that the session receives
    /// once it has run `LISTEN` (PostgreSQL documentation, LISTEN). Several that come before
    /// somebody waits ring once.
    ///
    /// # Errors
    /// As for [`Self::connect_sql`].
    ///
    /// # Cancel safety
    /// As for [`Self::connect_sql`].
    pub async fn connect_listening(&self, bell: Arc<Notify>) -> Result<SqlConnection, Error> {
        self.connect_any(Some(bell)).await
    }

    async fn connect_any(&self, bell: Option<Arc<Notify>>) -> Result<SqlConnection, Error> {
        let mut last = None;
        for target in startup::resolve(self).await? {
            match self.connect_sql_to(&target, bell.clone()).await {
                Ok(connection) => return Ok(connection),
                Err(e) => last = keep(last, e),
            }
        }
        Err(last.unwrap_or(Error::Closed))
    }

    async fn connect_sql_to(
        &self,
        target: &Target,
        bell: Option<Arc<Notify>>,
    ) -> Result<SqlConnection, Error> {
        let mode = self.ssl_mode_for(target);
        let config = self.single(target, mode);
        let failed = |cause| Error::Sql { host: target.to_string(), cause };
        let attempt = async {
            if mode == SslMode::Disable {
                let (client, connection) = config.connect(NoTls).await.map_err(failed)?;
                return Ok(SqlConnection { client, connection: drive(connection, bell) });
            }
            let tls = MakeRustlsConnect::new(tls::client_config(self, mode)?);
            let (client, connection) = config.connect(tls).await.map_err(failed)?;
            Ok(SqlConnection { client, connection: drive(connection, bell) })
        };
        tokio::time::timeout(self.connect_timeout(), attempt)
            .await
            .unwrap_or_else(|_| Err(startup::timed_out(target, self)))
    }

    /// The options of `tokio_postgres` for one address.
    fn single(&self, target: &Target, mode: SslMode) -> tokio_postgres::Config {
        let from = self.as_tokio_postgres();
        let mut config = tokio_postgres::Config::new();
        config.user(self.user()).dbname(self.database()).port(target.port);
        match &target.host {
            Host::Tcp(name) => config.host(name),
            Host::Unix(dir) => config.host_path(dir),
        };
        if let Some(addr) = target.addr {
            config.hostaddr(addr);
        }
        if let Some(password) = self.password_for(target) {
            config.password(password);
        }
        if let Some(options) = from.get_options() {
            config.options(options);
        }
        if let Some(name) = from.get_application_name() {
            config.application_name(name);
        }
        if let Some(&timeout) = from.get_tcp_user_timeout() {
            config.tcp_user_timeout(timeout);
        }
        config.keepalives(from.get_keepalives()).keepalives_idle(from.get_keepalives_idle());
        if let Some(interval) = from.get_keepalives_interval() {
            config.keepalives_interval(interval);
        }
        if let Some(retries) = from.get_keepalives_retries() {
            config.keepalives_retries(retries);
        }
        config
            .connect_timeout(self.connect_timeout())
            .target_session_attrs(from.get_target_session_attrs())
            .channel_binding(from.get_channel_binding())
            .ssl_negotiation(from.get_ssl_negotiation())
            .ssl_mode(match mode {
                SslMode::Disable => PgSslMode::Disable,
                SslMode::Prefer => PgSslMode::Prefer,
                SslMode::VerifyCa | SslMode::VerifyFull => PgSslMode::Require,
            });
        config
    }
}
