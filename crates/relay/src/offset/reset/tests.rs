//! Old offset, slot, server and streams, and the offset that follows.

use jiff::Timestamp;
use outflow_event::Position;

use super::*;
use crate::resume::{Server, Slot};

fn lsn(lsn: u64) -> Lsn {
    Lsn::from(lsn)
}

fn facts(confirmed: Option<u64>) -> Facts {
    Facts {
        server: Server {
            system_identifier: "7".into(),
            timeline: 1,
            flush_lsn: lsn(1000),
            in_recovery: false,
            major: 15,
            database: "shop".into(),
        },
        slot_name: "ob".into(),
        slot: confirmed.map(|confirmed| Slot {
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            temporary: false,
            two_phase: false,
            failover: false,
            active: None,
            confirmed_flush_lsn: Some(lsn(confirmed)),
            invalidation: None,
        }),
        history: Vec::new(),
        at: Timestamp::UNIX_EPOCH,
    }
}

fn offset(epoch: u8, end_lsn: u64, position: Option<(u64, u64)>) -> Offset {
    Offset {
        epoch: Epoch(epoch),
        position: position.map(|(at, index)| Position::new(lsn(at), index)),
        published_count: 9,
        ..resume::first_offset(&facts(None), lsn(end_lsn))
    }
}

fn id(epoch: u8, at: u64) -> Option<EntryId> {
    Some(EntryId::at(Epoch(epoch), Position::new(lsn(at), 0)).unwrap())
}

fn known(offset: &Offset) -> Known<'_> {
    Known { offset: Some(offset), ..Known::default() }
}

fn rows(facts: &Facts, known: Known<'_>) -> ResetPlan {
    plan(ResetMode::FromRows, facts, known, SnapshotMode::Initial).unwrap()
}

fn slot(facts: &Facts, known: Known<'_>) -> ResetPlan {
    plan(ResetMode::FromSlot, facts, known, SnapshotMode::Initial).unwrap()
}

fn refusal(mode: ResetMode, facts: &Facts, known: Known<'_>) -> String {
    match plan(mode, facts, known, SnapshotMode::Initial) {
        Err(Error::Refused(text)) => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn from_rows_the_next_start_replaces_the_slot_and_takes_a_snapshot() {
    let old = offset(2, 500, Some((490, 3)));
    for confirmed in [None, Some(400), Some(600)] {
        let facts = facts(confirmed);
        let plan = rows(&facts, known(&old));
        assert_eq!((plan.offset.epoch, plan.raised), (Epoch(2), None));
        assert_eq!(plan.drops_slot, confirmed.is_some());
        assert!(plan.offset.resume_point() > old.resume_point());
        let decision = resume::decide(&facts, Some(&plan.offset), SnapshotMode::Initial);
        let drop_slot = confirmed.is_some();
        assert_eq!(decision, Decision::Bootstrap { drop_slot, epoch: Epoch(2) });
    }
}

#[test]
fn from_rows_also_gets_past_a_slot_that_was_lost() {
    let mut facts = facts(Some(400));
    if let Some(slot) = &mut facts.slot {
        slot.invalidation = Some("wal_removed".into());
        slot.confirmed_flush_lsn = None;
    }
    let old = offset(0, 500, None);
    let plan = rows(&facts, known(&old));
    let decision = resume::decide(&facts, Some(&plan.offset), SnapshotMode::Initial);
    assert_eq!(decision, Decision::Bootstrap { drop_slot: true, epoch: Epoch(0) });
    assert!(refusal(ResetMode::FromSlot, &facts, known(&old)).contains("wal_removed"));
}

#[test]
fn from_slot_the_next_start_streams_from_there_and_the_gap_is_named() {
    let old = offset(1, 500, Some((490, 3)));
    let facts = facts(Some(600));
    let plan = slot(&facts, known(&old));
    assert_eq!(plan.gap, Some(Gap { from: old.resume_point(), to: lsn(600) }));
    assert_eq!(plan.gap.unwrap().to_string(), "0/1F4 (epoch 1) to 0/258, 100 B of log");
    assert_eq!((plan.offset.epoch, plan.offset.published_count), (Epoch(1), 9));
    assert_eq!(plan.offset.position, old.position);
    let decision = resume::decide(&facts, Some(&plan.offset), SnapshotMode::Initial);
    assert!(matches!(decision, Decision::Resume { from, fork: None } if from.end_lsn == lsn(600)));
}

#[test]
fn the_epoch_rises_where_ids_would_not() {
    let other = Offset { system_identifier: "8".into(), ..offset(1, 500, None) };
    let above = offset(1, 2000, None);
    let partly = offset(1, 500, Some((1500, 3)));
    let low = offset(1, 500, None);
    let facts = facts(Some(600));
    for (known, expected) in [
        (known(&other), 2),
        (known(&above), 2),
        (known(&partly), 2),
        (Known { last_id: id(1, 1000), ..known(&low) }, 2),
        (Known { last_id: id(1, 599), ..known(&low) }, 1),
        (Known { last_id: id(0, 5000), ..known(&low) }, 1),
        (Known { last_id: id(3, 10), ..known(&low) }, 3),
        (Known { last_id: id(3, 5000), unreadable: true, offset: None }, 4),
        (Known { unreadable: true, ..Known::default() }, 0),
    ] {
        for plan in [rows(&facts, known), slot(&facts, known)] {
            assert_eq!(plan.offset.epoch, Epoch(expected), "{known:?}");
            let present = known.offset.map_or(Epoch(0), |offset| offset.epoch);
            let present = present.max(known.last_id.map_or(Epoch(0), |id| id.to_position().0));
            assert_eq!(plan.raised.is_some(), plan.offset.epoch > present, "{known:?}");
            assert!(known.offset.is_none_or(|old| plan.offset.resume_point() > old.resume_point()));
        }
    }
}

#[test]
fn a_slot_that_streams_by_itself_needs_no_reset() {
    let old = offset(0, 500, None);
    let text = refusal(ResetMode::FromSlot, &facts(Some(400)), known(&old));
    assert!(text.contains("nothing to reset"), "{text}");
    let text = refusal(ResetMode::FromSlot, &facts(Some(400)), Known::default());
    assert!(text.contains("begins where the slot stands"), "{text}");
}

#[test]
fn what_stands_against_a_reset_is_named() {
    let old = offset(0, 500, None);
    let mut active = facts(Some(600));
    if let Some(slot) = &mut active.slot {
        slot.active = Some(42);
    }
    for mode in [ResetMode::FromRows, ResetMode::FromSlot] {
        let text = refusal(mode, &active, known(&old));
        assert!(text.contains("process 42") && text.contains("stop the connector"), "{text}");
        let mut physical = facts(Some(600));
        if let Some(slot) = &mut physical.slot {
            slot.plugin = None;
        }
        assert!(refusal(mode, &physical, known(&old)).contains("physical"));
        let last = Offset { epoch: Epoch(255), ..offset(0, 2000, None) };
        assert!(refusal(mode, &facts(Some(600)), known(&last)).contains("epoch"));
    }
    let text = refusal(ResetMode::FromSlot, &facts(None), known(&old));
    assert!(text.contains("pg_create_logical_replication_slot('ob'"), "{text}");
    let text = refusal(ResetMode::FromSlot, &facts(Some(2000)), known(&old));
    assert!(text.contains("beyond the end of the server's log"), "{text}");
    let never = plan(ResetMode::FromRows, &facts(None), known(&old), SnapshotMode::Never);
    assert!(never.unwrap_err().to_string().contains("source.snapshot"));
    let mut standby = facts(None);
    standby.server.in_recovery = true;
    assert!(refusal(ResetMode::FromRows, &standby, known(&old)).contains("standby"));
}
