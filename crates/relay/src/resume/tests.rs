//! The table of cases, one row a case, and what holds for all of them.

use outflow_event::Position;
use proptest::prelude::*;

use jiff::Timestamp;
use outflow_pgoutput::TimelineSwitch;

use super::*;
use crate::offset::{ResumePoint, SnapshotProgress};

/// A case: stored offset, slot, server, and what must follow.
struct Case {
    name: &'static str,
    stored: Option<Offset>,
    slot: Option<Slot>,
    server: Server,
    history: Vec<TimelineSwitch>,
    mode: SnapshotMode,
    expected: Expected,
}

enum Expected {
    Bootstrap {
        drop_slot: bool,
        epoch: u8,
    },
    ContinueSnapshot,
    Adopt {
        start: u64,
    },
    Resume {
        start: u64,
        skip: Option<(u64, u64)>,
        epoch: u8,
        fork: bool,
    },
    Wait(fn(&Wait) -> bool),
    /// The variant, and what its text must name.
    Refuse(fn(&Refusal) -> bool, &'static [&'static str]),
}

fn lsn(lsn: u64) -> Lsn {
    Lsn::from(lsn)
}

fn server() -> Server {
    Server {
        system_identifier: "7".into(),
        timeline: 1,
        flush_lsn: lsn(1000),
        in_recovery: false,
        major: 15,
        database: "shop".into(),
    }
}

fn slot(confirmed: u64) -> Slot {
    Slot {
        plugin: Some("pgoutput".into()),
        database: Some("shop".into()),
        temporary: false,
        two_phase: false,
        failover: false,
        active: None,
        confirmed_flush_lsn: Some(lsn(confirmed)),
        invalidation: None,
    }
}

fn offset(end_lsn: u64, position: Option<(u64, u64)>) -> Offset {
    Offset {
        system_identifier: "7".into(),
        timeline: 1,
        slot: "ob".into(),
        epoch: Epoch(0),
        position: position.map(|(commit, index)| Position::new(lsn(commit), index)),
        end_lsn: lsn(end_lsn),
        commit_time: None,
        published_count: 5,
        at: Timestamp::UNIX_EPOCH,
        snapshot: None,
    }
}

/// A snapshot at LSN 100 whose slot starts at 120.
fn in_snapshot(begun: bool, rows: Option<u64>) -> Offset {
    let progress = SnapshotProgress {
        visible: if begun { "5:9:".into() } else { String::new() },
        lsn: lsn(100).to_string(),
        start: begun.then(|| lsn(120).to_string()),
        last_key: Vec::new(),
    };
    Offset { snapshot: Some(progress), ..offset(100, rows.map(|rows| (100, rows))) }
}

fn switch(timeline: u32, at: u64) -> TimelineSwitch {
    TimelineSwitch { timeline, switch_point: lsn(at), reason: String::new() }
}

impl Default for Case {
    fn default() -> Self {
        Self {
            name: "",
            stored: Some(offset(500, Some((490, 0)))),
            slot: Some(slot(500)),
            server: server(),
            history: Vec::new(),
            mode: SnapshotMode::Initial,
            expected: Expected::Resume { start: 500, skip: None, epoch: 0, fork: false },
        }
    }
}

fn ordinary() -> Vec<Case> {
    use Expected::{Adopt, Bootstrap, ContinueSnapshot, Resume};
    vec![
        Case {
            name: "first start",
            stored: None,
            slot: None,
            expected: Bootstrap { drop_slot: false, epoch: 0 },
            ..Case::default()
        },
        Case {
            name: "c53 a slot without an offset is taken up where it stands, not at the tip",
            stored: None,
            slot: Some(slot(300)),
            expected: Adopt { start: 300 },
            ..Case::default()
        },
        Case { name: "between transactions", ..Case::default() },
        Case { name: "the slot lags behind the offset", slot: Some(slot(200)), ..Case::default() },
        Case {
            name: "c55 in the middle of a transaction",
            stored: Some(offset(500, Some((600, 3)))),
            expected: Resume { start: 500, skip: Some((600, 4)), epoch: 0, fork: false },
            ..Case::default()
        },
        Case {
            name: "the slot stands between the end and the partly published transaction",
            stored: Some(offset(500, Some((600, 3)))),
            slot: Some(slot(600)),
            expected: Resume { start: 500, skip: Some((600, 4)), epoch: 0, fork: false },
            ..Case::default()
        },
        Case {
            name: "another slot, copied at an earlier position",
            stored: Some(Offset { slot: "old".into(), ..offset(500, None) }),
            slot: Some(slot(400)),
            ..Case::default()
        },
        Case {
            name: "a standby that can stream (16 and later)",
            server: Server { in_recovery: true, major: 16, ..server() },
            ..Case::default()
        },
        Case {
            name: "the slot of a snapshot that crashed before it was noted is dropped",
            stored: Some(in_snapshot(false, None)),
            slot: Some(slot(120)),
            expected: Bootstrap { drop_slot: true, epoch: 0 },
            ..Case::default()
        },
        Case {
            name: "a snapshot that crashed before its slot was there",
            stored: Some(in_snapshot(false, None)),
            slot: None,
            expected: Bootstrap { drop_slot: false, epoch: 0 },
            ..Case::default()
        },
        Case {
            name: "the same on a server that was restored to an earlier state",
            stored: Some(in_snapshot(false, None)),
            slot: None,
            server: Server { flush_lsn: lsn(50), ..server() },
            expected: Bootstrap { drop_slot: false, epoch: 1 },
            ..Case::default()
        },
        Case {
            name: "a planned snapshot that is not asked for any more",
            stored: Some(in_snapshot(false, None)),
            slot: Some(slot(120)),
            mode: SnapshotMode::Never,
            expected: Adopt { start: 120 },
            ..Case::default()
        },
        Case {
            name: "a snapshot that has just begun",
            stored: Some(in_snapshot(true, None)),
            slot: Some(slot(120)),
            expected: ContinueSnapshot,
            ..Case::default()
        },
        Case {
            name: "a snapshot in the middle",
            stored: Some(in_snapshot(true, Some(41))),
            slot: Some(slot(120)),
            expected: ContinueSnapshot,
            ..Case::default()
        },
    ]
}

fn promoted() -> Vec<Case> {
    use Expected::{ContinueSnapshot, Refuse, Resume};
    let second = || Server { timeline: 2, ..server() };
    vec![
        Case {
            name: "a promotion above everything published: same epoch",
            server: second(),
            history: vec![switch(1, 700)],
            ..Case::default()
        },
        Case {
            name: "a promotion exactly at the offset",
            server: second(),
            history: vec![switch(1, 500)],
            ..Case::default()
        },
        Case {
            name: "a promotion above the commit of a partly published transaction",
            stored: Some(offset(500, Some((600, 3)))),
            server: second(),
            history: vec![switch(1, 650)],
            expected: Resume { start: 500, skip: Some((600, 4)), epoch: 0, fork: false },
            ..Case::default()
        },
        Case {
            name: "c41 a published transaction is lost: back to the switch point, next epoch",
            slot: Some(slot(400)),
            server: second(),
            history: vec![switch(1, 450)],
            expected: Resume { start: 450, skip: None, epoch: 1, fork: true },
            ..Case::default()
        },
        Case {
            name: "a partly published transaction is lost",
            stored: Some(offset(500, Some((600, 3)))),
            server: second(),
            history: vec![switch(1, 600)],
            expected: Resume { start: 500, skip: None, epoch: 1, fork: true },
            ..Case::default()
        },
        Case {
            name: "only idle log is lost, yet the offset must be able to move",
            stored: Some(offset(500, Some((300, 0)))),
            slot: Some(slot(400)),
            server: second(),
            history: vec![switch(1, 450)],
            expected: Resume { start: 450, skip: None, epoch: 1, fork: true },
            ..Case::default()
        },
        Case {
            name: "the lost log reaches beyond the new server's end",
            slot: Some(slot(400)),
            server: Server { flush_lsn: lsn(460), ..second() },
            history: vec![switch(1, 450)],
            expected: Resume { start: 450, skip: None, epoch: 1, fork: true },
            ..Case::default()
        },
        Case {
            name: "several promotions: where the offset's timeline was left counts",
            server: Server { timeline: 4, ..server() },
            history: vec![switch(1, 700), switch(2, 720), switch(3, 800)],
            ..Case::default()
        },
        Case {
            name: "the slot moved on in the new history",
            slot: Some(slot(470)),
            server: second(),
            history: vec![switch(1, 450)],
            expected: Refuse(|r| matches!(r, Refusal::SlotAhead { .. }), &["0/1D6", "0/1C2"]),
            ..Case::default()
        },
        Case {
            name: "a promotion during the snapshot, above its slot",
            stored: Some(in_snapshot(true, Some(3))),
            slot: Some(slot(120)),
            server: second(),
            history: vec![switch(1, 120)],
            expected: ContinueSnapshot,
            ..Case::default()
        },
        Case {
            name: "a promotion that has lost the snapshot's slot",
            stored: Some(in_snapshot(true, Some(3))),
            slot: Some(slot(110)),
            server: second(),
            history: vec![switch(1, 119)],
            expected: Refuse(|r| matches!(r, Refusal::SnapshotLost { .. }), &["0/77", "`outflow"]),
            ..Case::default()
        },
        Case {
            name: "no epoch is left",
            stored: Some(Offset { epoch: Epoch(255), ..offset(500, Some((490, 0))) }),
            server: second(),
            history: vec![switch(1, 450)],
            expected: Refuse(|r| matches!(r, Refusal::Epochs(_)), &["stream_prefix"]),
            ..Case::default()
        },
        Case {
            name: "a history without the offset's timeline",
            stored: Some(Offset { timeline: 3, ..offset(500, None) }),
            server: Server { timeline: 4, ..server() },
            history: vec![switch(1, 700), switch(2, 720)],
            expected: Refuse(|r| matches!(r, Refusal::TimelineUnrelated { .. }), &["3", "4"]),
            ..Case::default()
        },
        Case {
            name: "an old primary",
            stored: Some(Offset { timeline: 2, ..offset(500, None) }),
            expected: Refuse(|r| matches!(r, Refusal::TimelineBehind { .. }), &["timeline 2"]),
            ..Case::default()
        },
    ]
}

fn refused() -> Vec<Case> {
    use Expected::Refuse;
    let fit = |slot| Case { slot: Some(slot), ..Case::default() };
    vec![
        Case {
            name: "c40 another cluster",
            server: Server { system_identifier: "8".into(), ..server() },
            expected: Refuse(
                |r| matches!(r, Refusal::OtherCluster { .. }),
                &["7", "8", "`outflow"],
            ),
            ..Case::default()
        },
        Case {
            name: "c40 another cluster, before anything was published",
            stored: Some(in_snapshot(false, None)),
            slot: None,
            server: Server { system_identifier: "8".into(), ..server() },
            expected: Refuse(|r| matches!(r, Refusal::OtherCluster { .. }), &["7", "8"]),
            ..Case::default()
        },
        Case {
            name: "c49 the offset lies beyond the server's log",
            stored: Some(offset(1001, None)),
            expected: Refuse(
                |r| matches!(r, Refusal::AheadOfServer { .. }),
                &["0/3E9", "1 B", "0/3E8", "Nothing was confirmed"],
            ),
            ..Case::default()
        },
        Case {
            name: "c49 a published commit lies beyond the server's log",
            stored: Some(offset(500, Some((1001, 0)))),
            expected: Refuse(|r| matches!(r, Refusal::AheadOfServer { .. }), &["0/3E9"]),
            ..Case::default()
        },
        Case {
            name: "c39 the slot is gone",
            slot: None,
            expected: Refuse(
                |r| matches!(r, Refusal::SlotMissing { .. }),
                &["`ob`", "500 B", "`outflow"],
            ),
            ..Case::default()
        },
        Case {
            name: "c39 the slot is gone during the snapshot",
            stored: Some(in_snapshot(true, Some(1))),
            slot: None,
            expected: Refuse(|r| matches!(r, Refusal::SlotMissing { .. }), &["initial snapshot"]),
            ..Case::default()
        },
        Case {
            name: "c39 the slot was created again",
            expected: Refuse(
                |r| matches!(r, Refusal::SlotAhead { .. }),
                &["0/258", "100 B", "0/1F4", "`outflow"],
            ),
            ..fit(slot(600))
        },
        Case {
            name: "the slot passed the partly published transaction",
            stored: Some(offset(500, Some((600, 3)))),
            slot: Some(slot(601)),
            expected: Refuse(|r| matches!(r, Refusal::SlotAhead { .. }), &["0/259"]),
            ..Case::default()
        },
        Case {
            name: "the slot passed the start of the snapshot's stream",
            stored: Some(in_snapshot(true, Some(3))),
            slot: Some(slot(121)),
            expected: Refuse(|r| matches!(r, Refusal::SlotAhead { .. }), &["0/79", "0/78"]),
            ..Case::default()
        },
        Case {
            name: "c50 a slot that was confirmed beyond the log",
            stored: None,
            expected: Refuse(|r| matches!(r, Refusal::SlotBeyondServer { .. }), &["0/7D0"]),
            ..fit(slot(2000))
        },
        Case {
            name: "c38 the slot was invalidated",
            expected: Refuse(
                |r| matches!(r, Refusal::SlotLost { .. }),
                &["wal_removed", "0/1F4", "500 B", "max_slot_wal_keep_size", "`outflow"],
            ),
            ..fit(Slot {
                invalidation: Some("wal_removed".into()),
                confirmed_flush_lsn: None,
                ..slot(0)
            })
        },
        Case {
            name: "a physical slot",
            expected: Refuse(|r| matches!(r, Refusal::SlotUnfit { .. }), &["physical"]),
            ..fit(Slot { plugin: None, database: None, ..slot(500) })
        },
        Case {
            name: "a slot of another plugin",
            expected: Refuse(|r| matches!(r, Refusal::SlotUnfit { .. }), &["wal2json"]),
            ..fit(Slot { plugin: Some("wal2json".into()), ..slot(500) })
        },
        Case {
            name: "a slot of another database",
            expected: Refuse(|r| matches!(r, Refusal::SlotUnfit { .. }), &["stock", "shop"]),
            ..fit(Slot { database: Some("stock".into()), ..slot(500) })
        },
        Case {
            name: "a temporary slot",
            expected: Refuse(|r| matches!(r, Refusal::SlotUnfit { .. }), &["temporary"]),
            ..fit(Slot { temporary: true, ..slot(500) })
        },
        Case {
            name: "a slot with two_phase",
            expected: Refuse(|r| matches!(r, Refusal::SlotUnfit { .. }), &["two_phase"]),
            ..fit(Slot { two_phase: true, ..slot(500) })
        },
    ]
}

fn waiting() -> Vec<Case> {
    use Expected::Wait as Waits;
    vec![
        Case {
            name: "c43 a standby that cannot stream",
            server: Server { in_recovery: true, ..server() },
            expected: Waits(|w| matches!(w, Wait::Standby { .. })),
            ..Case::default()
        },
        Case {
            name: "a slot cannot be created on a standby",
            stored: None,
            slot: None,
            server: Server { in_recovery: true, major: 17, ..server() },
            expected: Waits(|w| matches!(w, Wait::StandbyWithoutSlot { .. })),
            ..Case::default()
        },
        Case {
            name: "c36 another process holds the slot",
            slot: Some(Slot { active: Some(4711), ..slot(500) }),
            expected: Waits(|w| w.to_string().contains("4711")),
            ..Case::default()
        },
        Case {
            name: "the slot of a crashed attempt is still held",
            stored: Some(in_snapshot(false, None)),
            slot: Some(Slot { active: Some(1), ..slot(120) }),
            expected: Waits(|w| matches!(w, Wait::SlotActive { .. })),
            ..Case::default()
        },
        Case {
            name: "a slot that is still being created",
            slot: Some(Slot { confirmed_flush_lsn: None, ..slot(0) }),
            expected: Waits(|w| matches!(w, Wait::SlotNotReady { .. })),
            ..Case::default()
        },
    ]
}

fn facts(case: &Case) -> Facts {
    Facts {
        server: case.server.clone(),
        slot_name: "ob".into(),
        slot: case.slot.clone(),
        history: case.history.clone(),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn skip(point: ResumePoint) -> Option<(u64, u64)> {
    (point.published > 0).then(|| (u64::from(point.lsn), point.published))
}

#[test]
fn every_case_is_decided_as_the_table_says() {
    for case in [ordinary(), promoted(), refused(), waiting()].into_iter().flatten() {
        let decision = decide(&facts(&case), case.stored.as_ref(), case.mode);
        let ok = match (&case.expected, &decision) {
            (
                Expected::Bootstrap { drop_slot, epoch },
                Decision::Bootstrap { drop_slot: dropped, epoch: Epoch(found) },
            ) => drop_slot == dropped && epoch == found,
            (Expected::ContinueSnapshot, Decision::ContinueSnapshot { from }) => {
                Some(from.resume_point()) == case.stored.as_ref().map(Offset::resume_point)
            }
            (Expected::Adopt { start }, Decision::Adopt { from }) => {
                u64::from(from.end_lsn) == *start && from.snapshot.is_none()
            }
            (
                Expected::Resume { start, skip: expected, epoch, fork: forked },
                Decision::Resume { from, fork },
            ) => {
                let found = (u64::from(from.end_lsn), skip(from.resume_point()), from.epoch.0);
                found == (*start, *expected, *epoch)
                    && fork.is_some() == *forked
                    && from.timeline == case.server.timeline
                    && from.slot == "ob"
            }
            (Expected::Wait(fits), Decision::Wait(wait)) => fits(wait),
            (Expected::Refuse(fits, names), Decision::Refuse(refusal)) => {
                let text = refusal.to_string();
                fits(refusal) && names.iter().all(|name| text.contains(name))
            }
            _ => false,
        };
        assert!(ok, "{}: {decision:?}", case.name);
    }
}

#[test]
fn a_fork_says_what_was_lost() {
    let last = Some(Position::new(lsn(490), 2));
    let fork = Fork { switch_point: lsn(450), last, epoch: Epoch(1) };
    let text = fork.to_string();
    assert!(
        text.contains("0/1C2") && text.contains("0/1EA:2") && text.contains("epoch 1"),
        "{text}"
    );
    let idle = Fork { last: None, ..fork };
    assert!(idle.to_string().contains("no published event was lost"), "{idle}");
}

fn slots() -> impl Strategy<Value = Option<Slot>> {
    let one = (0..60u64, 0..12u8).prop_map(|(confirmed, kind)| match kind {
        0 => Slot { plugin: None, ..slot(confirmed) },
        1 => Slot { active: Some(1), ..slot(confirmed) },
        2 => Slot { invalidation: Some("wal_removed".into()), ..slot(confirmed) },
        3 => Slot { confirmed_flush_lsn: None, ..slot(confirmed) },
        _ => slot(confirmed),
    });
    proptest::option::weighted(0.9, one)
}

fn offsets() -> impl Strategy<Value = Option<Offset>> {
    let plain = (1..60u64, proptest::option::of((1..60u64, 0..3u64)), 1..4u32)
        .prop_map(|(end, position, timeline)| Offset { timeline, ..offset(end, position) });
    let snapshot = (any::<bool>(), 5..40u64, 1..9u64, proptest::option::of(0..3u64), 1..4u32)
        .prop_map(|(begun, at, later, rows, timeline)| {
            let mut offset = in_snapshot(begun, rows.filter(|_| begun));
            offset.end_lsn = lsn(at);
            offset.timeline = timeline;
            offset.position = offset.position.map(|p| Position::new(lsn(at), p.index));
            if let Some(progress) = &mut offset.snapshot {
                progress.lsn = lsn(at).to_string();
                progress.start = begun.then(|| lsn(at + later).to_string());
            }
            offset
        });
    proptest::option::weighted(0.9, prop_oneof![3 => plain, 1 => snapshot])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_decision_skips_what_is_not_published(
        stored in offsets(),
        slot in slots(),
        flush in 0..70u64,
        timeline in 1..4u32,
        switches in (0..60u64, 0..60u64),
        never in any::<bool>(),
    ) {
        let (first, second) = (switches.0.min(switches.1), switches.0.max(switches.1));
        let mut history = vec![switch(1, first), switch(2, second)];
        history.truncate(usize::try_from(timeline).unwrap() - 1);
        let mode = if never { SnapshotMode::Never } else { SnapshotMode::Initial };
        let server = Server { timeline, flush_lsn: lsn(flush), ..server() };
        let case =
            Case { stored, slot, server, history: history.clone(), mode, ..Case::default() };
        let confirmed = case.slot.as_ref().and_then(|slot| slot.confirmed_flush_lsn);
        match decide(&facts(&case), case.stored.as_ref(), mode) {
            Decision::Resume { from, fork } => {
                let stored = case.stored.unwrap();
                let confirmed = confirmed.unwrap();
                prop_assert!(stored.snapshot.is_none());
                prop_assert!(from.end_lsn <= stored.end_lsn);
                prop_assert!(from.end_lsn <= lsn(flush));
                // what the server skips is published: all of it lies below the resume point
                prop_assert!(confirmed <= from.resume_point().lsn);
                prop_assert!(from.resume_point() >= stored.resume_point());
                let left = history.iter().find(|switch| switch.timeline == stored.timeline);
                if let Some(left) = left {
                    // what the new history wrote after the switch point is not taken as published
                    let point = from.resume_point();
                    prop_assert!((point.lsn, point.published) <= (left.switch_point, 0));
                }
                prop_assert_eq!(fork.is_some(), from.epoch > stored.epoch);
            }
            Decision::ContinueSnapshot { from } => {
                let stored = case.stored.unwrap();
                prop_assert_eq!(&from.snapshot, &stored.snapshot);
                prop_assert_eq!(from.resume_point(), stored.resume_point());
                let streaming = from.after_snapshot().unwrap();
                prop_assert!(confirmed.unwrap() <= streaming.end_lsn);
            }
            Decision::Adopt { from } => {
                prop_assert_eq!(Some(from.end_lsn), confirmed);
                prop_assert!(case.stored.is_none_or(|stored| stored.position.is_none()));
            }
            Decision::Bootstrap { drop_slot, .. } => {
                prop_assert_eq!(drop_slot, case.slot.is_some());
                // a slot is only ever dropped when nothing was published from it
                let planned = |stored: &Offset| {
                    stored.position.is_none()
                        && stored.snapshot.as_ref().is_some_and(|p| p.visible.is_empty())
                };
                prop_assert!(case.stored.as_ref().is_none_or(planned));
                prop_assert!(!drop_slot || case.stored.is_some());
            }
            Decision::Wait(_) | Decision::Refuse(_) => {}
        }
    }
}
