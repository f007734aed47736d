//! Log capture for tests: an unexpected WARN or ERROR fails the test.
//!
//! With a process per test (cargo-nextest) every event of the process counts. Where tests share a
//! process as threads (`cargo test`), the events of the test's own thread count, so that tests do
//! not answer for each other.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, Weak};
use std::thread::{self, ThreadId};

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Lines that a failure shows.
const SHOWN: usize = 200;
/// Lines that a capture keeps; the oldest go first.
const KEPT: usize = 50_000;

/// Every live capture of this process.
static CAPTURES: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Shared {
    /// Only events of this thread count; none: of every thread.
    thread: Option<ThreadId>,
    /// The latest lines of every level.
    lines: Mutex<VecDeque<String>>,
    /// All WARN and ERROR lines.
    warnings: Mutex<Vec<String>>,
    expected: Mutex<Vec<String>>,
}

/// Records log events from its installation until it is dropped, and then fails the test if an
/// unexpected WARN or ERROR was among them.
#[derive(Debug)]
#[must_use = "the capture ends when it is dropped"]
pub struct Capture {
    shared: Arc<Shared>,
}

impl Capture {
    /// Starts to capture: the events of the process under cargo-nextest, of this thread otherwise.
    ///
    /// # Panics
    /// When another global tracing subscriber is installed in this process.
    pub fn install() -> Self {
        let alone = std::env::var("NEXTEST_EXECUTION_MODE").is_ok_and(|m| m == "process-per-test");
        Self::start((!alone).then(|| thread::current().id()))
    }

    /// Starts to capture the events of every thread of the process.
    ///
    /// # Panics
    /// When another global tracing subscriber is installed in this process.
    pub fn install_for_process() -> Self {
        Self::start(None)
    }

    fn start(thread: Option<ThreadId>) -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            // RUST_LOG=debug prints as well, for a look at a failing test
            let printer = std::env::var_os("RUST_LOG").map(|_| {
                tracing_subscriber::fmt::layer()
                    .with_test_writer()
                    .with_filter(EnvFilter::from_default_env())
            });
            let subscriber = Registry::default().with(Router).with(printer);
            let set = tracing::subscriber::set_global_default(subscriber);
            assert!(set.is_ok(), "a log capture needs to be the process's only tracing subscriber");
        });
        let (lines, warnings, expected) = Default::default();
        let shared = Arc::new(Shared { thread, lines, warnings, expected });
        let mut captures = lock(&CAPTURES);
        captures.retain(|capture| capture.strong_count() > 0);
        captures.push(Arc::downgrade(&shared));
        drop(captures);
        Self { shared }
    }

    /// Accepts WARN and ERROR lines that contain this text.
    pub fn expect_warn(&self, text: impl Into<String>) {
        lock(&self.shared.expected).push(text.into());
    }

    /// Accepts ERROR and WARN lines that contain this text; reads better where an ERROR is meant.
    pub fn expect_error(&self, text: impl Into<String>) {
        self.expect_warn(text);
    }

    /// Every line so far, of the latest 50 000, that contains this text:
    /// `LEVEL target: message field=value`.
    #[must_use]
    pub fn matching(&self, text: &str) -> Vec<String> {
        let lines = lock(&self.shared.lines);
        lines.iter().filter(|line| line.contains(text)).cloned().collect()
    }

    /// The unexpected WARN and ERROR lines so far.
    #[must_use]
    pub fn offending(&self) -> Vec<String> {
        let expected = lock(&self.shared.expected);
        let warnings = lock(&self.shared.warnings);
        let unexpected = |line: &&String| !expected.iter().any(|text| line.contains(text));
        warnings.iter().filter(unexpected).cloned().collect()
    }

    /// Fails the test now if there are unexpected WARN or ERROR lines.
    ///
    /// # Panics
    /// When there are.
    pub fn assert_quiet(&self) {
        let offending = self.offending();
        assert!(offending.is_empty(), "unexpected WARN or ERROR:\n{}", offending.join("\n"));
    }

    fn tail(&self) -> String {
        let lines = lock(&self.shared.lines);
        let from = lines.len().saturating_sub(SHOWN);
        lines.iter().skip(from).fold(String::new(), |text, line| text + line + "\n")
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("log of the failed test:\n{}", self.tail());
            return;
        }
        let offending = self.offending();
        if !offending.is_empty() {
            eprintln!("log of the test:\n{}", self.tail());
        }
        assert!(offending.is_empty(), "unexpected WARN or ERROR:\n{}", offending.join("\n"));
    }
}

/// Hands every event to the captures that it concerns.
struct Router;

impl<S: Subscriber> Layer<S> for Router {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::DEBUG)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let here = thread::current().id();
        let concerned: Vec<Arc<Shared>> = lock(&CAPTURES)
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|capture| capture.thread.is_none_or(|thread| thread == here))
            .collect();
        let level = *event.metadata().level();
        if concerned.is_empty() || level > Level::DEBUG {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let target = event.metadata().target();
        let text = format!("{level} {target}: {}{}", fields.message, fields.rest);
        for capture in concerned {
            if level <= Level::WARN {
                lock(&capture.warnings).push(text.clone());
            }
            let mut lines = lock(&capture.lines);
            if lines.len() == KEPT {
                lines.pop_front();
            }
            lines.push_back(text.clone());
        }
    }
}

#[derive(Default)]
struct Fields {
    message: String,
    rest: String,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // writing to a String cannot fail
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.rest, " {name}={value:?}"),
        };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
