//! From a list of hosts to a session in replication mode.
//!
//! Source: PostgreSQL documentation, "Message Flow: Start-up" and "SSL Session Encryption".

mod auth;

use std::{collections::HashMap, io, net::SocketAddr, sync::Arc};

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_postgres::config::{Host, SslNegotiation};
use tokio_rustls::TlsConnector;

use crate::{
    ConnectOptions, Error,
    config::{SslMode, Target},
    error::ServerError,
    reader::Reader,
    socket::Socket,
    tls,
    wire::{Wire, short},
};

/// What the text of values depends on, and warnings: one of them tells of a missing publication. Set in the
/// startup packet, so that the settings of the role and the database do not show: they rank below it.
const PINNED: [(&str, &str); 7] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "3"),
    ("client_min_messages", "warning"),
];

/// An authenticated session.
pub(crate) struct Session {
    pub(crate) wire: Wire,
    pub(crate) host: String,
    pub(crate) process_id: u32,
    pub(crate) parameters: HashMap<String, String>,
}

/// Every address of every host, in order. Names that cannot be resolved are skipped as long as another host
/// is left.
pub(crate) async fn resolve(options: &ConnectOptions) -> Result<Vec<Target>, Error> {
    let mut found = Vec::new();
    let mut failure = None;
    for target in options.targets()? {
        match (&target.host, target.addr) {
            (Host::Unix(_), _) | (_, Some(_)) => found.push(target),
            (Host::Tcp(name), None) => {
                let lookup = tokio::net::lookup_host((name.as_str(), target.port));
                match timeout(options.connect_timeout(), lookup).await {
                    Ok(Ok(addrs)) => {
                        found.extend(addrs.map(|a| Target { addr: Some(a.ip()), ..target.clone() }))
                    }
                    Ok(Err(cause)) => {
                        failure = Some(Error::Connect { host: target.to_string(), cause });
                    }
                    Err(_) => failure = Some(timed_out(&target, options)),
                }
            }
        }
    }
    match failure {
        Some(e) if found.is_empty() => Err(e),
        Some(e) => {
            tracing::warn!(error = %e, "trying the other hosts");
            Ok(found)
        }
        None => Ok(found),
    }
}

pub(crate) fn timed_out(target: &Target, options: &ConnectOptions) -> Error {
    Error::ConnectTimeout { host: target.to_string(), after: options.connect_timeout() }
}

/// A session on one address. How long that may take is the caller's to say.
pub(crate) async fn open(options: &ConnectOptions, target: &Target) -> Result<Session, Error> {
    let socket = dial(options, target).await?;
    let mut wire = Wire::new(socket);
    let mut out = BytesMut::new();
    let config = options.as_tokio_postgres();
    let mut parameters = vec![
        ("user", options.user()),
        ("database", options.database()),
        ("replication", "database"),
    ];
    parameters.extend(config.get_options().map(|value| ("options", value)));
    parameters.extend(config.get_application_name().map(|value| ("application_name", value)));
    parameters.extend(PINNED);
    frontend::startup_message(parameters, &mut out).map_err(|_| {
        Error::Config("a zero byte in user, database, options or application_name".into())
    })?;
    wire.send(&out).await?;
    let host = target.to_string();
    auth::authenticate(&mut wire, options, target).await.map_err(|e| pooler(&host, e))?;
    greeting(wire, host).await
}

/// Everything between authentication and the first ReadyForQuery.
async fn greeting(mut wire: Wire, host: String) -> Result<Session, Error> {
    const DURING: &str = "start-up";
    let mut parameters = HashMap::new();
    let mut process_id = 0;
    loop {
        let answer = wire.next().await?;
        match answer.tag {
            b'S' => {
                let (name, value) = parameter(&answer.body)?;
                parameters.insert(name, value);
            }
            b'K' => process_id = Reader::new(&answer.body).u32().map_err(short(DURING))?,
            b'N' => notice(&answer.body),
            b'Z' => return Ok(Session { wire, host, process_id, parameters }),
            _ => return Err(pooler(&host, answer.unexpected(DURING))),
        }
    }
}

/// Name and value of a ParameterStatus message.
pub(crate) fn parameter(body: &[u8]) -> Result<(String, String), Error> {
    let mut reader = Reader::new(body);
    let mut text = || -> Result<String, Error> {
        let bytes = reader.cstr().map_err(short("parameter status"))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    Ok((text()?, text()?))
}

pub(crate) fn notice(body: &[u8]) {
    let notice = ServerError::parse(body);
    tracing::debug!(severity = notice.severity, code = notice.code.code(), "{}", notice.message);
}

/// Recognises pgbouncer and its kind, which refuse parameters that every PostgreSQL server takes.
fn pooler(host: &str, e: Error) -> Error {
    match e {
        Error::Server(server) if server.message.starts_with("unsupported startup parameter") => {
            Error::Pooler { host: host.to_owned(), reason: server.message }
        }
        other => other,
    }
}

async fn dial(options: &ConnectOptions, target: &Target) -> Result<Socket, Error> {
    let failed = |cause| Error::Connect { host: target.to_string(), cause };
    match (&target.host, target.addr) {
        (Host::Unix(dir), _) => {
            Socket::unix(dir.join(format!(".s.PGSQL.{}", target.port))).await.map_err(failed)
        }
        (Host::Tcp(_), None) => Err(failed(io::ErrorKind::AddrNotAvailable.into())),
        (Host::Tcp(name), Some(addr)) => {
            let stream =
                Socket::tcp(SocketAddr::new(addr, target.port), options.as_tokio_postgres())
                    .await
                    .map_err(failed)?;
            match options.ssl_mode_for(target) {
                SslMode::Disable => Ok(Socket::Tcp(stream)),
                mode => secure(stream, mode, options, name, target).await,
            }
        }
    }
}

async fn secure(
    mut stream: TcpStream,
    mode: SslMode,
    options: &ConnectOptions,
    name: &str,
    target: &Target,
) -> Result<Socket, Error> {
    if options.as_tokio_postgres().get_ssl_negotiation() == SslNegotiation::Postgres {
        let mut out = BytesMut::new();
        frontend::ssl_request(&mut out);
        stream.write_all(&out).await.map_err(Error::Io)?;
        // one byte and no more: a server that sends more than it was asked for is not trusted with it
        match stream.read_u8().await.map_err(Error::Io)? {
            b'S' => {}
            b'N' if mode == SslMode::Prefer => return Ok(Socket::Tcp(stream)),
            b'N' => return Err(Error::TlsNotOffered { host: target.to_string() }),
            other => {
                return Err(Error::Protocol(format!(
                    "'{}' in answer to the request for tls: is this a postgresql port?",
                    other.escape_ascii()
                )));
            }
        }
    }
    let failed = |cause| Error::Tls { host: target.to_string(), cause };
    let config = Arc::new(tls::client_config(options, mode)?);
    let name = tls::server_name(name).map_err(failed)?;
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(failed)?;
    Ok(Socket::Tls(Box::new(stream)))
}
