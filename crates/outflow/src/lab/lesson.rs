//! What a step tells: what happened, why, where to look, what comes next.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::broker::{Broker, IDLE_MINUTES};
use super::folder::Lab;

/// The outcome of a step, for people and for scripts; the field names are stable.
#[derive(Debug, Serialize)]
pub(super) struct Lesson {
    step: &'static str,
    /// False: the step has shown that something is off.
    pub(super) ok: bool,
    #[serde(skip)]
    title: &'static str,
    /// What happened, a line each.
    happened: Vec<String>,
    /// Figures and names, by step.
    #[serde(flatten)]
    facts: Map<String, Value>,
    #[serde(skip)]
    why: &'static str,
    /// Command lines that show what the step has left.
    look: Vec<String>,
    /// The command line of the next step.
    next: Option<String>,
    /// The lab's own Redis, if the step used it.
    #[serde(skip_serializing_if = "Option::is_none")]
    redis: Option<OwnRedis>,
}

/// The lab's own Redis, which runs on after a step.
#[derive(Debug, Serialize)]
pub(super) struct OwnRedis {
    socket: String,
    pid: Option<u32>,
    /// The command line that ends it.
    stop: String,
}

impl OwnRedis {
    /// `None` if the lab uses another one.
    pub(super) fn of(lab: &Lab, broker: &Broker) -> Option<Self> {
        broker.own().map(|server| Self {
            socket: server.socket().display().to_string(),
            pid: server.pid(),
            stop: lab.command("stop"),
        })
    }
}

impl fmt::Display for OwnRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        writeln!(
            f,
            "redis\n  the lab's own Redis runs on{pid}; it ends {IDLE_MINUTES} minutes after the last \
             step, or now with\n  {}",
            self.stop
        )
    }
}

impl Lesson {
    pub(super) fn new(step: &'static str, title: &'static str, why: &'static str) -> Self {
        Self {
            step,
            ok: true,
            title,
            happened: Vec::new(),
            facts: Map::new(),
            why,
            look: Vec::new(),
            next: None,
            redis: None,
        }
    }

    /// Adds a line about what happened.
    pub(super) fn said(mut self, line: impl Into<String>) -> Self {
        self.happened.push(line.into());
        self
    }

    /// Adds a figure or a name to the JSON form.
    pub(super) fn fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a command line to look with.
    pub(super) fn look(mut self, command: impl Into<String>) -> Self {
        self.look.push(command.into());
        self
    }

    /// Names the next step.
    pub(super) fn next(mut self, lab: &Lab, step: &str) -> Self {
        self.next = Some(lab.command(step));
        self
    }

    /// Says how to end the lab's own Redis.
    pub(super) fn with(mut self, lab: &Lab, broker: &Broker) -> Self {
        self.redis = OwnRedis::of(lab, broker);
        self
    }

    /// Leaves out what only a person who goes step by step needs.
    pub(super) fn brief(mut self) -> Self {
        self.next = None;
        self.redis = None;
        self
    }
}

impl fmt::Display for Lesson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.step, self.title)?;
        for line in &self.happened {
            writeln!(f, "  {line}")?;
        }
        if !self.why.is_empty() {
            writeln!(f, "why")?;
            for line in self.why.lines() {
                writeln!(f, "  {line}")?;
            }
        }
        if !self.look.is_empty() {
            writeln!(f, "look")?;
            for line in &self.look {
                writeln!(f, "  {line}")?;
            }
        }
        if let Some(next) = &self.next {
            writeln!(f, "next\n  {next}")?;
        }
        match &self.redis {
            Some(redis) => write!(f, "{redis}"),
            None => Ok(()),
        }
    }
}
