//! What running processes say of themselves, over HTTP.

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::http::Health;

/// More than any account is long.
const LIMIT: u64 = 1 << 20;

/// Asks the processes at these addresses, side by side; without any the one at `http.listen`, if it is set.
pub(super) async fn look(config: &Config, addresses: &[String]) -> Vec<Result<Health, String>> {
    let own = config.listen.filter(|_| addresses.is_empty()).map(|listen| listen.to_string());
    let asked = addresses.iter().cloned().chain(own);
    let answers: Vec<_> = asked.map(|address| tokio::spawn(super::in_time(ask(address)))).collect();
    let mut found = Vec::new();
    for answer in answers {
        found.push(answer.await.unwrap_or_else(|error| Err(error.to_string())));
    }
    found
}

/// One GET on a connection of its own: not worth an HTTP client.
async fn ask(address: String) -> anyhow::Result<Health> {
    let mut stream = TcpStream::connect(&address)
        .await
        .with_context(|| format!("no process answers at http://{address}"))?;
    let request = format!("GET /status HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.take(LIMIT).read_to_string(&mut reply).await?;
    let Some((head, body)) = reply.split_once("\r\n\r\n") else {
        bail!("http://{address}/status does not speak HTTP");
    };
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("http://{address}/status answers {status}");
    }
    serde_json::from_str(body)
        .with_context(|| format!("http://{address}/status is not that of an outflow process"))
}
