//! What running processes say of themselves, over HTTP.

use anyhow::Context;

use crate::config::Config;
use crate::http::Health;

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

async fn ask(address: String) -> anyhow::Result<Health> {
    let said = crate::http::ask(&address, "/status").await?;
    serde_json::from_str(&said)
        .with_context(|| format!("http://{address}/status is not that of an outflow process"))
}
