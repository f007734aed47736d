//! `[polling]`: the settings of `outflow relay --polling`.

use std::time::Duration;

use outflow_relay::PollingConfig;
use outflow_relay::polling::{ClaimColumns, WakeUp};

use super::check;
use super::consumer::default_worker;
use super::reader::Reader;
use super::settings::{millis, seconds};

/// Below this a lease runs out between two renewals that a busy machine delays.
const SHORTEST_LEASE: Duration = millis(500);

pub(super) fn read(read: &mut Reader) -> PollingConfig {
    let relay = read.text("polling.relay", &default_worker(), check::name);
    let hour = seconds(3600);
    let lease = read.duration("polling.lease", seconds(30), SHORTEST_LEASE..=hour);
    let interval = read.duration("polling.interval", millis(50), millis(1)..=seconds(60));
    let max_interval = read.duration("polling.max_interval", seconds(1), millis(1)..=seconds(60));
    if max_interval < interval {
        read.problem("polling.max_interval", "expected at least polling.interval");
    }
    let wake_up = read.choice(
        "polling.wake_up",
        ("interval", WakeUp::Interval),
        &[("notify", WakeUp::Notify)],
    );
    let retention = read.shown("polling.retention", None, show_retention, retention);
    let ClaimColumns { claimed_by, claimed_until, published_at } = ClaimColumns::default();
    let columns = ClaimColumns {
        claimed_by: read.text("polling.columns.claimed_by", &claimed_by, check::identifier),
        claimed_until: read.text(
            "polling.columns.claimed_until",
            &claimed_until,
            check::identifier,
        ),
        published_at: read.text("polling.columns.published_at", &published_at, check::identifier),
    };
    PollingConfig { relay, lease, interval, max_interval, wake_up, retention, columns }
}

/// `forever`, or a duration.
fn retention(text: &str) -> Result<Option<Duration>, String> {
    if text == "forever" {
        return Ok(None);
    }
    let most = seconds(3650 * 86_400);
    humantime::parse_duration(text)
        .ok()
        .filter(|duration| (seconds(1)..=most).contains(duration))
        .map(Some)
        .ok_or_else(|| {
            "expected \"forever\" or a duration from 1s to 3650days, for example \"7days\""
                .to_owned()
        })
}

/// Written as [`retention`] reads it.
fn show_retention(retention: &Option<Duration>) -> String {
    retention.map_or_else(
        || "forever".to_owned(),
        |duration| humantime::format_duration(duration).to_string(),
    )
}
