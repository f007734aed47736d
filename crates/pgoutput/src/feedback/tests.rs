use proptest::prelude::*;

use super::*;

fn limits() -> Limits {
    Limits {
        start: lsn(0),
        status_interval: Duration::from_secs(10),
        peer_timeout: Duration::from_secs(60),
        shutdown_patience: Duration::from_secs(1),
        idle_advance: true,
    }
}

fn lsn(n: u64) -> Lsn {
    Lsn::from(n)
}

/// A feedback whose clock moves by hand.
struct Clock {
    feedback: Feedback,
    start: Instant,
    now: Duration,
    sent: Vec<Status>,
}

impl Clock {
    fn new() -> Self {
        Self::with(limits())
    }

    fn with(limits: Limits) -> Self {
        let start = Instant::now();
        Self { feedback: Feedback::new(limits, start), start, now: Duration::ZERO, sent: vec![] }
    }

    fn at(&self) -> Instant {
        self.start + self.now
    }

    /// Moves on, and does what falls due; stops at anything but a status update.
    fn run(&mut self, time: Duration) -> Option<Step> {
        let end = self.now + time;
        loop {
            match self.feedback.step(self.at(), true) {
                Step::Send(status) => self.sent.push(status),
                Step::Wait(until) => {
                    let next = until.saturating_duration_since(self.start);
                    assert!(next > self.now, "waits for the past");
                    if next > end {
                        self.now = end;
                        return None;
                    }
                    self.now = next;
                }
                step => return Some(step),
            }
        }
    }

    fn ms(&mut self, ms: u64) -> Option<Step> {
        self.run(Duration::from_millis(ms))
    }

    fn keepalive(&mut self, end: u64, reply: bool) {
        let now = self.at();
        self.feedback.heard(now);
        self.feedback.keepalive(now, lsn(end), reply);
    }

    fn transaction(&mut self, end: u64) {
        self.feedback.begin();
        self.feedback.commit(lsn(end));
    }

    fn flush(&self) -> u64 {
        self.feedback.flush().into()
    }
}

#[test]
fn nothing_is_confirmed_before_anything_was_received() {
    let mut clock = Clock::new();
    clock.ms(10_000);
    assert_eq!(clock.sent, [Status { write: lsn(0), flush: lsn(0), reply: false }]);
    clock.feedback.confirm(lsn(500));
    assert_eq!(clock.flush(), 0);
}

#[test]
fn c31_idle_keepalives_move_the_flush_position() {
    let mut clock = Clock::new();
    clock.keepalive(100, false);
    assert_eq!(clock.flush(), 100);
    clock.transaction(150);
    clock.feedback.confirm(lsn(150));
    clock.keepalive(300, false);
    assert_eq!(clock.flush(), 300);
}

#[test]
fn c32_a_keepalive_is_not_confirmed_past_what_is_in_flight() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.transaction(200);
    clock.keepalive(900, true);
    assert_eq!(clock.flush(), 0);
    clock.feedback.confirm(lsn(100));
    assert_eq!(clock.flush(), 100);
    // all that came before the keepalive is durable: now it counts
    clock.feedback.confirm(lsn(200));
    assert_eq!(clock.flush(), 900);
}

#[test]
fn a_commit_after_the_keepalive_does_not_take_it_back() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.keepalive(500, false);
    clock.transaction(600);
    clock.feedback.confirm(lsn(100));
    assert_eq!(clock.flush(), 500);
    clock.keepalive(700, false);
    assert_eq!(clock.flush(), 500);
    clock.feedback.confirm(lsn(600));
    assert_eq!(clock.flush(), 700);
}

#[test]
fn c32_a_keepalive_inside_a_transaction_is_ignored() {
    let mut clock = Clock::new();
    clock.feedback.begin();
    clock.keepalive(900, true);
    assert_eq!((clock.flush(), clock.feedback.received()), (0, lsn(0)));
    // it is answered all the same
    clock.ms(0);
    assert_eq!(clock.sent.len(), 1);
    clock.feedback.commit(lsn(1000));
    assert_eq!(clock.flush(), 0);
}

#[test]
fn without_idle_advance_only_the_caller_confirms() {
    let mut clock = Clock::with(Limits { idle_advance: false, ..limits() });
    clock.keepalive(100, false);
    assert_eq!(clock.flush(), 0);
    clock.feedback.confirm(lsn(100));
    assert_eq!(clock.flush(), 100);
}

#[test]
fn c49_keepalives_below_the_start_confirm_nothing() {
    let mut clock = Clock::with(Limits { start: lsn(1000), ..limits() });
    clock.keepalive(500, true);
    assert_eq!((clock.flush(), clock.feedback.received()), (0, lsn(0)));
    clock.keepalive(1000, false);
    assert_eq!(clock.flush(), 1000);
}

#[test]
fn c33_updates_come_more_often_while_nothing_is_read() {
    let start = Instant::now();
    let mut feedback = Feedback::new(limits(), start);
    assert_eq!(feedback.step(start, true), Step::Wait(start + Duration::from_secs(10)));
    assert_eq!(feedback.step(start, false), Step::Wait(start + Duration::from_secs(1)));
}

#[test]
fn c50_a_position_from_the_future_is_cut_down_to_what_arrived() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.feedback.confirm(lsn(u64::MAX));
    assert_eq!(clock.flush(), 100);
}

#[test]
fn c33_an_ask_is_answered_at_once_and_the_timer_goes_on_by_itself() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.keepalive(100, true);
    clock.ms(0);
    assert_eq!(clock.sent, [Status { write: lsn(100), flush: lsn(0), reply: false }]);
    // nobody asks (wal_sender_timeout = 0): every status_interval
    clock.ms(25_000);
    assert_eq!(clock.sent.len(), 3);
}

#[test]
fn a_position_that_moved_is_sent_within_a_second() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.ms(10);
    clock.feedback.confirm(lsn(100));
    clock.ms(980);
    assert_eq!(clock.sent, []);
    clock.ms(10);
    assert_eq!(clock.sent.last().map(|s| s.flush), Some(lsn(100)));
}

#[test]
fn c44_silence_is_probed_at_half_time_and_ends_the_link() {
    let mut clock = Clock::new();
    assert_eq!(clock.ms(29_999), None);
    assert!(clock.sent.iter().all(|s| !s.reply));
    assert_eq!(clock.ms(1), None);
    assert!(clock.sent.last().is_some_and(|s| s.reply));
    // an answer
    clock.keepalive(1, false);
    assert_eq!(clock.ms(59_999), None);
    assert_eq!(clock.ms(1), Some(Step::Dead));
    assert_eq!(clock.sent.iter().filter(|s| s.reply).count(), 2);
}

#[test]
fn silence_means_nothing_while_the_socket_is_not_read() {
    let mut feedback = Feedback::new(limits(), Instant::now());
    let mut now = Instant::now();
    for _ in 0..100 {
        now += Duration::from_secs(10);
        assert!(!matches!(feedback.step(now, false), Step::Dead));
    }
    now += Duration::from_secs(59);
    assert!(!matches!(feedback.step(now, true), Step::Dead));
}

#[test]
fn c35_an_idle_link_answers_a_shutdown_with_its_final_position() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.feedback.confirm(lsn(100));
    clock.keepalive(140, true);
    clock.ms(0);
    assert_eq!(clock.sent.last().map(|s| s.flush), Some(lsn(140)));
}

/// A walsender that shuts down asks again as soon as it has an answer.
fn storm(clock: &mut Clock, end: u64, ms: u64) -> Option<Step> {
    let until = clock.now + Duration::from_millis(ms);
    while clock.now < until {
        let answers = clock.sent.len();
        if let Some(step) = clock.ms(1) {
            return Some(step);
        }
        if clock.sent.len() > answers {
            clock.keepalive(end, true);
        }
    }
    None
}

#[test]
fn c35_a_shutdown_with_events_in_flight_releases_the_link_without_a_false_confirm() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.keepalive(140, true);
    assert_eq!(storm(&mut clock, 140, 900), None);
    assert_eq!(storm(&mut clock, 140, 400), Some(Step::Release));
    assert!(clock.sent.iter().all(|s| s.flush == lsn(0)));
    // about one answer every 100 ms, not one for every ask
    assert!(clock.sent.len() < 15, "{}", clock.sent.len());
}

#[test]
fn c35_a_confirmation_during_the_shutdown_is_sent_at_once() {
    let mut clock = Clock::new();
    clock.transaction(100);
    clock.keepalive(140, true);
    assert_eq!(storm(&mut clock, 140, 500), None);
    assert!(clock.feedback.awaited());
    clock.feedback.confirm(lsn(100));
    clock.ms(5);
    assert_eq!(clock.sent.last().map(|s| s.flush), Some(lsn(140)));
    assert_eq!(storm(&mut clock, 140, 3000), None);
}

#[test]
fn asks_of_a_short_wal_sender_timeout_are_no_shutdown() {
    let mut clock = Clock::new();
    clock.transaction(100);
    for _ in 0..100 {
        clock.keepalive(140, true);
        assert_eq!(clock.ms(250), None);
    }
    assert!(!clock.feedback.awaited());
}

#[test]
fn asks_with_news_are_no_shutdown() {
    let mut clock = Clock::new();
    clock.transaction(100);
    for end in 140..1000 {
        clock.keepalive(end, true);
        assert_eq!(clock.ms(10), None);
    }
}

#[derive(Debug, Clone)]
enum Event {
    Begin,
    Commit(u64),
    Keepalive(u64, bool),
    Confirm(usize),
    Time(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        Just(Event::Begin),
        (1..50_u64).prop_map(Event::Commit),
        (0..50_u64, any::<bool>()).prop_map(|(ahead, reply)| Event::Keepalive(ahead, reply)),
        any::<usize>().prop_map(Event::Confirm),
        (0..15_000_u64).prop_map(Event::Time),
    ]
}

proptest! {
    /// Whatever the order of events: flush never falls, never passes an unconfirmed commit, never passes
    /// what was received.
    #[test]
    fn c32_flush_is_monotonic_and_never_passes_what_is_in_flight(
        events in proptest::collection::vec(event(), 1..200),
    ) {
        let mut clock = Clock::new();
        let mut tip = 100;
        let mut open = false;
        let mut unconfirmed: Vec<u64> = vec![];
        let mut last = 0;
        for event in events {
            match event {
                Event::Begin if !open => {
                    clock.feedback.begin();
                    open = true;
                }
                Event::Commit(size) if open => {
                    tip += size;
                    clock.feedback.commit(lsn(tip));
                    unconfirmed.push(tip);
                    open = false;
                }
                Event::Keepalive(ahead, reply) => {
                    tip += if open { 0 } else { ahead };
                    clock.keepalive(tip, reply);
                }
                Event::Confirm(index) if !unconfirmed.is_empty() => {
                    let index = index % unconfirmed.len();
                    clock.feedback.confirm(lsn(unconfirmed[index]));
                    unconfirmed.drain(..=index);
                }
                Event::Time(ms) => {
                    clock.ms(ms);
                }
                _ => {}
            }
            let flush = clock.flush();
            prop_assert!(flush >= last, "fell");
            prop_assert!(flush <= u64::from(clock.feedback.received()), "from the future");
            if let Some(&first) = unconfirmed.first() {
                prop_assert!(flush < first, "passed an unconfirmed commit");
            } else if !open && clock.feedback.idle.is_some() {
                prop_assert!(false, "idle position left unused");
            }
            last = flush;
        }
        let sent: Vec<_> = clock.sent.iter().map(|s| s.flush).collect();
        prop_assert!(sent.is_sorted());
    }
}
