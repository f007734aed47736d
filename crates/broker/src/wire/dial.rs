//! From an address to a connection that may be used.

use std::io;
use std::sync::{Arc, OnceLock};

use redis::{ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::wakes::Wakes;
use super::{Coming, Conversation, Stream, value};
use crate::packed::Packed;

/// Connects to `addr`, with TLS where it asks for that.
pub(super) async fn dial(addr: &ConnectionAddr) -> RedisResult<(Stream, Wakes)> {
    let stream: Stream = match addr {
        ConnectionAddr::Tcp(host, port) => {
            let stream = tcp(host, *port).await?;
            let wakes = Wakes::of(&stream);
            return Ok((Box::pin(stream), wakes));
        }
        ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None } => {
            let name = ServerName::try_from(host.clone())
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
            let connector = TlsConnector::from(tls()?);
            Box::pin(connector.connect(name, tcp(host, *port).await?).await?)
        }
        ConnectionAddr::Unix(path) => Box::pin(UnixStream::connect(path).await?),
        _ => {
            return Err(RedisError::from((
                ErrorKind::InvalidClientConfig,
                "TLS without a check of the certificate is not offered",
            )));
        }
    };
    Ok((stream, Wakes::always()))
}

async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = TcpStream::connect((host, port)).await?;
    // commands are written in one go and their replies awaited: Nagle's algorithm would only delay
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Trusts what the operating system trusts, or the files that `SSL_CERT_FILE` and `SSL_CERT_DIR`
/// name; read once.
fn tls() -> io::Result<Arc<ClientConfig>> {
    static CONFIG: OnceLock<Arc<ClientConfig>> = OnceLock::new();
    if let Some(config) = CONFIG.get() {
        return Ok(Arc::clone(config));
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the operating system has no certificate authorities: install ca-certificates, or name a \
             file of them in SSL_CERT_FILE",
        ));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::clone(CONFIG.get_or_init(|| Arc::new(config))))
}

/// User and password, database, and the name that `CLIENT LIST` shows (Redis documentation, AUTH,
/// SELECT and CLIENT SETINFO).
pub(super) async fn introduce(
    conversation: &mut Conversation,
    settings: &RedisConnectionInfo,
) -> RedisResult<()> {
    let mut commands = Packed::default();
    if let Some(password) = settings.password() {
        let user = settings.username();
        let mut auth = commands.command(2 + usize::from(user.is_some()));
        auth.arg(b"AUTH");
        if let Some(user) = user {
            auth.arg(user.as_bytes());
        }
        auth.arg(password.as_bytes());
    }
    let authenticates = !commands.is_empty();
    if settings.db() != 0 {
        commands.command(2).arg(b"SELECT").arg(settings.db().to_string().as_bytes());
    }
    let required = commands.len();
    // older servers and users with few rights are refused this: they go without a name
    let name = [&b"CLIENT"[..], b"SETINFO", b"LIB-NAME", b"outflow"];
    let mut set_name = commands.command(name.len());
    name.iter().for_each(|argument| {
        set_name.arg(argument);
    });
    drop(set_name);
    let mut said = None;
    let exchanged = conversation
        .exchange(commands.bytes(), Coming::of(commands.len()), |index, received, length| {
            match value(received, length)? {
                Value::ServerError(error) if said.is_none() => said = Some((index, error)),
                _ => {}
            }
            Ok(())
        })
        .await;
    match (exchanged, said) {
        (Ok(()), None) => Ok(()),
        (Ok(()), Some((index, _))) if index >= required => Ok(()),
        (_, Some((0, error))) if authenticates => Err(RedisError::from((
            ErrorKind::AuthenticationFailed,
            "Redis refuses user and password",
            format!("{} {}", error.code(), error.details().unwrap_or_default()),
        ))),
        // a server that takes no more clients says so before it closes, whatever it was asked
        (_, Some((_, error))) => Err(error.into()),
        (Err(error), None) => Err(error),
    }
}
