//! Series in what a process serves as metrics (`GET /metrics`, Prometheus text) that show a reason.
//!
//! The names are those of the runbook, which alarms are made of.

use std::fmt;

use crate::rig::CONSUMER;

/// A series by its name and one of its labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::drill) struct Series {
    name: &'static str,
    key: &'static str,
    value: &'static str,
}

impl Series {
    /// 1 while a relay waits on this: `sink`.
    pub(in crate::drill) const fn relay_waits_on(value: &'static str) -> Self {
        Self { name: "outflow_connector_waiting", key: "on", value }
    }

    /// 1 while this component of a consumer waits: `reader`.
    pub(in crate::drill) const fn consumer_waits_in(value: &'static str) -> Self {
        Self { name: "outflow_consumer_waiting", key: "component", value }
    }

    /// What the consumer counts under this name.
    pub(in crate::drill) const fn of_consumer(name: &'static str) -> Self {
        Self { name, key: "consumer", value: CONSUMER }
    }

    /// Whether a line shows a value above zero under this name, whatever its labels.
    pub(super) fn is_raised(&self, line: &str) -> bool {
        let Some((series, value)) = line.rsplit_once(' ') else { return false };
        let name = series.split('{').next();
        name == Some(self.name) && value.parse().is_ok_and(|value: f64| value > 0.0)
    }

    /// Whether a line is of this name and has the label.
    pub(super) fn is_in(&self, line: &str) -> bool {
        let labels = line.strip_prefix(self.name).and_then(|rest| rest.strip_prefix('{'));
        let labels = labels.and_then(|labels| labels.split('}').next());
        let wanted = format!("{}=\"{}\"", self.key, self.value);
        labels.is_some_and(|labels| labels.split(',').any(|label| label == wanted))
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{{{}=\"{}\"}}", self.name, self.key, self.value)
    }
}
