//! Log lines on standard error: readable on a terminal, JSON for machines.

use std::io::{self, IsTerminal};

use clap::ColorChoice;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

use crate::cli::Global;
use crate::config::{Config, LogFormat};

/// Starts logging as flags, RUST_LOG and configuration say, in this order.
///
/// # Errors
/// A RUST_LOG that cannot be read.
pub(crate) fn start(config: &Config, global: &Global) -> anyhow::Result<()> {
    let terminal = io::stderr().is_terminal();
    let json = match config.log.format {
        LogFormat::Json => true,
        LogFormat::Human => false,
        LogFormat::Auto => !terminal,
    };
    let color = match global.color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => {
            terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        }
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter(config)?)
        .with_writer(io::stderr)
        .with_timer(SystemTime);
    if json {
        log.json().flatten_event(true).with_current_span(true).with_span_list(false).init();
    } else {
        log.with_ansi(color).with_target(false).init();
    }
    Ok(())
}

fn filter(config: &Config) -> anyhow::Result<EnvFilter> {
    let variable = std::env::var(EnvFilter::DEFAULT_ENV).ok().filter(|value| !value.is_empty());
    match variable {
        Some(directives) if !config.log.level_is_flag => EnvFilter::builder()
            .parse(&directives)
            .map_err(|error| anyhow::anyhow!("RUST_LOG = {directives:?} is not a filter: {error}")),
        _ => Ok(EnvFilter::builder().parse(&config.log.level)?),
    }
}
