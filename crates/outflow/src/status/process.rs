//! A running process's own account, over HTTP.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::http::Health;

/// More than any account is long.
const LIMIT: u64 = 1 << 20;

/// Asks the process at `http.listen`; `None`: none is configured.
pub(super) async fn look(config: &Config) -> Option<Result<Health, String>> {
    Some(super::in_time(ask(config.listen?)).await)
}

/// One GET on a connection of its own: not worth an HTTP client.
async fn ask(listen: SocketAddr) -> anyhow::Result<Health> {
    let mut stream = TcpStream::connect(listen)
        .await
        .with_context(|| format!("no process answers at http://{listen}"))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {listen}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.take(LIMIT).read_to_string(&mut reply).await?;
    let Some((head, body)) = reply.split_once("\r\n\r\n") else {
        bail!("http://{listen}/status does not speak HTTP");
    };
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("http://{listen}/status answers {status}");
    }
    serde_json::from_str(body)
        .with_context(|| format!("http://{listen}/status is not that of an outflow process"))
}
