//! Health, readiness, status and metrics of a running process.
//!
//! | path | answers |
//! | --- | --- |
//! | `/healthz` | 200 while the process is alive: restart it if it does not answer |
//! | `/readyz` | 200 while it moves events or has none to move, else 503 with the reason |
//! | `/status` | everything as JSON; `outflow status` reads it |
//! | `/metrics` | Prometheus text |
//!
//! There is no authentication: listen on the loopback address, or on one that only the monitoring
//! reaches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Upper bounds of the duration histograms in seconds: from a local round trip to an outage.
const SECONDS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 300.0];

/// More than any answer is long.
const LIMIT: u64 = 1 << 20;

/// How often the recorder gives back the memory of old samples.
const UPKEEP: Duration = Duration::from_secs(5);

/// A process seen from inside.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Health {
    /// `relay` or `consume`.
    pub(crate) command: String,
    /// Version of the program.
    pub(crate) version: String,
    /// It moves events, or has none to move.
    pub(crate) ready: bool,
    /// Why it is not ready.
    pub(crate) reason: Option<String>,
    /// Everything else that it knows about itself.
    pub(crate) detail: serde_json::Value,
}

impl Health {
    /// `reason` is why it stands still, if it does.
    pub(crate) fn new(command: &str, reason: Option<String>, detail: serde_json::Value) -> Self {
        Self {
            command: command.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: reason.is_none(),
            reason,
            detail,
        }
    }
}

/// Asked at every request.
pub(crate) type Probe = Arc<dyn Fn() -> Health + Send + Sync>;

#[derive(Clone)]
struct Served {
    probe: Probe,
    metrics: PrometheusHandle,
}

/// What [`serve`] needs. Made first: whatever asks for a metric before that would count for nothing.
pub(crate) struct Metrics(Option<PrometheusHandle>);

/// Begins to record metrics, if there is an address to serve them on: else they cost nothing.
///
/// # Errors
/// Another recorder is installed in this process.
pub(crate) fn record(listen: Option<SocketAddr>) -> anyhow::Result<Metrics> {
    if listen.is_none() {
        return Ok(Metrics(None));
    }
    let metrics = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)
        .and_then(PrometheusBuilder::install_recorder)
        .context("metrics cannot be recorded")?;
    Ok(Metrics(Some(metrics)))
}

/// Serves on `listen` until the runtime ends: also while the process stops, which is when people look.
/// Does nothing without an address.
///
/// # Errors
/// The address cannot be used.
pub(crate) async fn serve(
    listen: Option<SocketAddr>,
    metrics: Metrics,
    probe: Probe,
) -> anyhow::Result<()> {
    let (Some(address), Some(metrics)) = (listen, metrics.0) else { return Ok(()) };
    let listener = tokio::net::TcpListener::bind(address).await.with_context(|| {
        format!(
            "http.listen = \"{address}\" cannot be used (relay and consume are two processes: \
                 give one of them another address with --listen)"
        )
    })?;
    let upkeep = metrics.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP).await;
            upkeep.run_upkeep();
        }
    });
    let app = router(Served { probe, metrics });
    tracing::info!("health, status and metrics on http://{}", listener.local_addr()?);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            tracing::error!("health, status and metrics are not served any more: {error}");
        }
    });
    Ok(())
}

/// What the process at `address` answers on `path`. One GET on a connection of its own: not worth an HTTP
/// client.
///
/// # Errors
/// No process answers there, or not with 200.
pub(crate) async fn ask(address: &str, path: &str) -> anyhow::Result<String> {
    let mut stream = TcpStream::connect(address)
        .await
        .with_context(|| format!("no process answers at http://{address}"))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut reply = String::new();
    stream.take(LIMIT).read_to_string(&mut reply).await?;
    let Some((head, body)) = reply.split_once("\r\n\r\n") else {
        bail!("http://{address}{path} does not speak HTTP");
    };
    let status = head.lines().next().unwrap_or_default();
    if !status.contains(" 200 ") {
        bail!("http://{address}{path} answers {status}");
    }
    Ok(body.to_owned())
}

fn router(served: Served) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/status", get(|State(served): State<Served>| async move { Json((served.probe)()) }))
        .route("/metrics", get(metrics))
        .with_state(served)
}

async fn ready(State(served): State<Served>) -> impl IntoResponse {
    let health = (served.probe)();
    let code = if health.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (code, Json(serde_json::json!({ "ready": health.ready, "reason": health.reason })))
}

async fn metrics(State(served): State<Served>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], served.metrics.render())
}
