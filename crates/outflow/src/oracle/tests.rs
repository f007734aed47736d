//! Every kind of fault is planted once and must be found, and found as what it is.

use std::collections::HashSet;

use super::check::{Applied, Checker, Committed, Projection, Record, Rules};
use super::verdict::{Fault, Verdict};

const STREAM: &str = "outflow:journal";

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

/// Two aggregates with events in turn: `e0`, `e2`, `e4` are about `c-0`, the others about `c-1`.
#[derive(Clone)]
struct Facts {
    committed: Vec<Committed>,
    record: Record,
    journal: HashSet<String>,
    entries: Vec<(&'static str, String, Fields)>,
    inbox: Vec<Applied>,
    expected: Projection,
    projection: Projection,
}

fn payload(number: u32) -> String {
    format!(r#"{{"amount": {}.10, "journal_id": "j{number}"}}"#, number + 1)
}

fn entry(number: u32) -> (&'static str, String, Fields) {
    let fields: [(&str, String); 8] = [
        ("event_id", format!("e{number}")),
        ("aggregate_type", "journal".to_owned()),
        ("aggregate_id", format!("c-{}", number % 2)),
        ("event_type", "Posted".to_owned()),
        ("seq", (number / 2 + 1).to_string()),
        ("payload", payload(number)),
        ("position", format!("1/{:X}:0", 16 + number)),
        ("commit_time", "2026-01-02T03:04:05.000006Z".to_owned()),
    ];
    let fields = fields.map(|(name, value)| (name.as_bytes().to_vec(), value.into_bytes()));
    (STREAM, format!("{}-0", (1_u64 << 32) + 16 + u64::from(number)), fields.to_vec())
}

impl Facts {
    fn sound() -> Self {
        let numbers = 0..6_u32;
        let names = |prefix: &str| numbers.clone().map(|n| format!("{prefix}{n}")).collect();
        let projection: Projection = [0, 1]
            .map(|c| ((format!("c-{c}"), "EUR".to_owned()), (format!("{}", 9 + c * 3), 3)))
            .into();
        Self {
            committed: numbers
                .clone()
                .map(|n| Committed {
                    event_id: format!("e{n}"),
                    aggregate_type: "journal".to_owned(),
                    aggregate_id: format!("c-{}", n % 2),
                    seq: Some(i64::from(n) / 2 + 1),
                    event_type: "Posted".to_owned(),
                    payload: Some(payload(n)),
                    headers: None,
                })
                .collect(),
            record: Record {
                committed: names("j"),
                rolled_back: HashSet::from(["j-rolled-back".to_owned()]),
            },
            journal: names("j"),
            entries: numbers.clone().map(entry).collect(),
            inbox: numbers
                .map(|n| Applied {
                    event_id: format!("e{n}"),
                    stream: STREAM.to_owned(),
                    entry_id: entry(n).1,
                    payload: Some(payload(n).into_bytes()),
                    committed_at: Some(1_767_323_047_000_006),
                })
                .collect(),
            expected: projection.clone(),
            projection,
        }
    }

    fn judge_with(&self, lsn_ids: bool) -> Verdict {
        self.judge_by(Rules { lsn_ids, may_repeat: false })
    }

    fn judge_by(&self, rules: Rules) -> Verdict {
        let mut checker = Checker::new(self.record.clone(), rules).unwrap();
        self.committed.iter().for_each(|event| checker.committed(event));
        checker.producer_facts(&self.journal);
        for (stream, id, fields) in &self.entries {
            checker.entry(stream, id, fields);
        }
        self.inbox.iter().for_each(|row| checker.applied(row));
        checker.projection(&self.expected, &self.projection);
        checker.finish()
    }

    /// The faults that are found, with the first offender of each.
    fn judge(&self) -> Vec<(Fault, u64, String)> {
        let verdict = self.judge_with(true);
        let found = verdict.faults.iter();
        found.map(|(fault, found)| (*fault, found.count, found.first[0].clone())).collect()
    }

    fn set(&mut self, entry: usize, name: &str, value: &str) {
        let fields = &mut self.entries[entry].2;
        fields.retain(|(field, _)| field != name.as_bytes());
        fields.push((name.into(), value.into()));
    }
}

#[test]
fn sound_facts_hold() {
    let verdict = Facts::sound().judge_with(true);
    assert_eq!(verdict.to_string(), "");
    assert!(verdict.holds());
    let counts = [verdict.committed, verdict.entries, verdict.inbox, verdict.projected];
    assert_eq!(counts, [6; 4]);
    assert_eq!((verdict.latency.len(), verdict.latency.max()), (6, 2_000_895));
}

#[test]
fn a_lost_event_is_found() {
    let mut facts = Facts::sound();
    facts.entries.remove(2);
    facts.inbox.remove(2);
    assert_eq!(facts.judge(), [(Fault::Lost, 1, "event e2".to_owned())]);
    let verdict = facts.judge_with(true);
    assert_eq!((verdict.lost(), verdict.entries, verdict.holds()), (1, 5, false));
}

#[test]
fn an_event_that_was_not_applied_is_found() {
    let mut facts = Facts::sound();
    facts.inbox.remove(5);
    assert_eq!(facts.judge(), [(Fault::NotApplied, 1, "event e5".to_owned())]);
}

#[test]
fn a_doubled_entry_is_found_wherever_its_id_comes_from() {
    let mut facts = Facts::sound();
    let (stream, _, fields) = facts.entries[1].clone();
    facts.entries.push((stream, "9999999999-0".to_owned(), fields));
    let found = facts.judge();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].0, found[0].1), (Fault::Doubled, 1));
    assert!(found[0].2.contains("e1"));
    // ids from Redis's clock: the position tells that both are one delivery
    let verdict = facts.judge_with(false);
    assert_eq!((verdict.count(&[Fault::Doubled]), verdict.count(&[Fault::PositionTwice])), (1, 1));
}

#[test]
fn a_repetition_is_no_fault_where_it_is_allowed_but_an_altered_one_and_a_second_effect_are() {
    let rules = Rules { lsn_ids: false, may_repeat: true };
    let mut facts = Facts::sound();
    let (stream, _, fields) = facts.entries[1].clone();
    facts.entries.push((stream, "9999999999-0".to_owned(), fields));
    let verdict = facts.judge_by(rules);
    assert_eq!((verdict.repeated, verdict.doubled(), verdict.holds()), (1, 0, true), "{verdict}");
    facts.set(6, "payload", "{}");
    assert_eq!(facts.judge_by(rules).count(&[Fault::Altered]), 1);
    let mut facts = Facts::sound();
    facts.inbox.push(facts.inbox[1].clone());
    assert_eq!(facts.judge_by(rules).doubled(), 1);
    let mut facts = Facts::sound();
    facts.entries.swap(0, 2);
    assert_eq!(facts.judge_by(rules).count(&[Fault::Reordered]), 1);
}

#[test]
fn a_repetition_of_several_entries_is_not_taken_for_disorder() {
    let mut facts = Facts::sound();
    for (number, again) in [2, 3, 4, 5].into_iter().enumerate() {
        let (stream, _, mut fields) = facts.entries[again].clone();
        fields.retain(|(name, _)| name != b"position");
        facts.entries.push((stream, format!("99999999999-{number}"), fields));
    }
    let verdict = facts.judge_with(true);
    assert_eq!((verdict.doubled(), verdict.count(&[Fault::Reordered])), (4, 0));
}

#[test]
fn two_events_at_one_position_are_found() {
    let mut facts = Facts::sound();
    facts.entries[3].0 = "outflow:other";
    facts.entries[3].1 = facts.entries[2].1.clone();
    facts.set(3, "position", "1/12:0");
    facts.inbox[3].stream = "outflow:other".to_owned();
    facts.inbox[3].entry_id = facts.entries[3].1.clone();
    let found = facts.judge();
    let kinds: Vec<_> = found.iter().map(|(fault, ..)| *fault).collect();
    assert_eq!(kinds, [Fault::PositionTwice, Fault::Reordered], "{found:?}");
}

#[test]
fn entries_of_one_aggregate_out_of_order_are_found() {
    let mut facts = Facts::sound();
    facts.entries.swap(0, 2);
    let found = facts.judge();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].0, found[0].1), (Fault::Reordered, 1));
    assert!(found[0].2.contains("seq 1 stands behind seq 2"), "{found:?}");
    // the order across aggregates is free
    let mut facts = Facts::sound();
    facts.entries.swap(0, 1);
    assert_eq!(facts.judge(), []);
}

#[test]
fn one_aggregate_in_two_streams_is_found() {
    let mut facts = Facts::sound();
    facts.entries[4].0 = "outflow:journal-2";
    facts.inbox[4].stream = "outflow:journal-2".to_owned();
    assert_eq!(facts.judge().iter().map(|found| found.0).collect::<Vec<_>>(), [Fault::Reordered]);
}

#[test]
fn content_that_is_not_what_was_committed_is_found() {
    for (name, value) in [
        ("payload", r#"{"amount": 2.1, "journal_id": "j1"}"#),
        ("payload", ""),
        ("aggregate_id", "c-7"),
        ("aggregate_type", "ledger"),
        ("event_type", "posted"),
        ("seq", "2"),
        ("headers", "{}"),
    ] {
        let mut facts = Facts::sound();
        facts.set(1, name, value);
        let found = facts.judge();
        assert_eq!((found.len(), found[0].0), (1, Fault::Altered), "{name} {found:?}");
        let what = name.split('_').next().unwrap();
        let what = if what == "event" { name } else { what };
        assert!(found[0].2.contains(what), "{name} {found:?}");
    }
}

#[test]
fn a_missing_or_repeated_field_is_found() {
    let mut facts = Facts::sound();
    facts.entries[1].2.retain(|(name, _)| name != b"payload");
    assert!(facts.judge()[0].2.contains("payload is not what was committed"));
    let mut facts = Facts::sound();
    facts.entries[1].2.push((b"seq".to_vec(), b"1".to_vec()));
    assert!(facts.judge()[0].2.contains("field seq stands twice"));
    let mut facts = Facts::sound();
    facts.entries[1].2.clear();
    assert!(facts.judge().iter().any(|found| found.2.contains("it has no event_id")));
}

#[test]
fn an_entry_id_that_is_not_its_position_is_found() {
    let mut facts = Facts::sound();
    facts.set(1, "position", "1/11:1");
    assert_eq!(facts.judge()[0].0, Fault::Altered);
    assert!(facts.judge_with(false).holds());
    // another epoch is none of its business
    let mut facts = Facts::sound();
    let id = format!("{}-0", (3_u64 << 56) + (1 << 32) + 21);
    facts.entries[5].1.clone_from(&id);
    facts.inbox[5].entry_id = id;
    assert_eq!(facts.judge(), []);
}

#[test]
fn a_rolled_back_event_that_leaked_is_found() {
    let mut facts = Facts::sound();
    facts.entries.push(entry(6));
    facts.set(6, "payload", r#"{"journal_id": "j-rolled-back"}"#);
    let found = facts.judge();
    assert_eq!((found.len(), found[0].0), (1, Fault::Leaked), "{found:?}");
    assert!(found[0].2.contains("j-rolled-back was rolled back"), "{found:?}");
    let mut facts = Facts::sound();
    facts.inbox.push(Applied { event_id: "e6".to_owned(), ..facts.inbox[0].clone() });
    assert_eq!(facts.judge()[0].0, Fault::Leaked);
    let mut facts = Facts::sound();
    facts.journal.insert("j-rolled-back".to_owned());
    assert_eq!(facts.judge()[0].0, Fault::Leaked);
}

#[test]
fn a_commit_that_the_database_forgot_is_found() {
    let mut facts = Facts::sound();
    facts.journal.remove("j3");
    let what = "j3: its commit was acknowledged".to_owned();
    assert_eq!(facts.judge(), [(Fault::Forgotten, 1, what)]);
}

#[test]
fn an_inbox_row_that_says_something_else_is_found() {
    let mut facts = Facts::sound();
    facts.inbox[2].payload = Some(b"{}".to_vec());
    assert_eq!(facts.judge()[0].0, Fault::Altered);
    let mut facts = Facts::sound();
    facts.inbox[2].entry_id = facts.inbox[3].entry_id.clone();
    assert!(facts.judge()[0].2.contains("is not its entry"));
    let mut facts = Facts::sound();
    facts.inbox.push(facts.inbox[0].clone());
    assert_eq!(facts.judge()[0].0, Fault::Doubled);
}

#[test]
fn a_wrong_projection_is_found_row_by_row() {
    let eur = |customer: &str| (customer.to_owned(), "EUR".to_owned());
    let mut facts = Facts::sound();
    facts.projection.insert(eur("c-0"), ("10".to_owned(), 3));
    facts.projection.remove(&eur("c-1"));
    facts.projection.insert(eur("c-2"), ("1".to_owned(), 3));
    let verdict = facts.judge_with(true);
    assert_eq!(verdict.count(&[Fault::Projection]), 3);
    assert_eq!(
        verdict.faults[&Fault::Projection].first,
        [
            "c-0 EUR: 10 from 3 events, expected 9 from 3 events",
            "c-1 EUR: no row, expected 12 from 3 events",
            "c-2 EUR: 1 from 3 events, expected no row",
        ]
    );
    // a double effect with the right sum (minus and plus) still shows
    let mut facts = Facts::sound();
    facts.projection.insert(eur("c-0"), ("9".to_owned(), 4));
    assert_eq!(facts.judge()[0].0, Fault::Projection);
    assert!(!facts.judge_with(true).all_equal());
}

#[test]
fn what_was_set_aside_is_a_fault_and_many_are_counted_but_not_all_named() {
    let mut checker =
        Checker::new(Record::default(), Rules { lsn_ids: true, may_repeat: false }).unwrap();
    (0..8).for_each(|n| checker.conflict(format!("event {n}")));
    checker.dead_letter("event 9".to_owned());
    let verdict = checker.finish();
    assert!(!verdict.holds());
    assert_eq!((verdict.count(&[Fault::Conflict]), verdict.count(&[Fault::DeadLetter])), (8, 1));
    assert!(verdict.to_string().ends_with("  and 3 more\ndead letter: 1\n  event 9\n"));
}
