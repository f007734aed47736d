//! The resume point decides what is published twice or never: its order is tested here.

use super::*;

fn offset(end_lsn: u64, position: Option<(u64, u64)>) -> Offset {
    Offset {
        system_identifier: "7".into(),
        timeline: 1,
        slot: "outflow".into(),
        epoch: Epoch(0),
        position: position.map(|(lsn, index)| Position::new(Lsn::from(lsn), index)),
        end_lsn: Lsn::from(end_lsn),
        commit_time: None,
        published_count: 0,
        at: Timestamp::UNIX_EPOCH,
        snapshot: None,
    }
}

fn point(lsn: u64, published: u64) -> ResumePoint {
    ResumePoint { epoch: Epoch(0), lsn: Lsn::from(lsn), published }
}

#[test]
fn between_transactions_the_end_counts_and_within_one_its_commit() {
    assert_eq!(offset(100, None).resume_point(), point(100, 0));
    assert_eq!(offset(100, Some((90, 4))).resume_point(), point(100, 0));
    assert_eq!(offset(100, Some((120, 4))).resume_point(), point(120, 5));
    // the next commit record may start exactly where the last transaction ended
    assert_eq!(offset(100, Some((100, 0))).resume_point(), point(100, 1));
}

#[test]
fn every_step_of_a_snapshot_lies_above_the_one_before() {
    let progress = SnapshotProgress {
        visible: String::new(),
        lsn: "0/64".into(),
        start: None,
        last_key: Vec::new(),
    };
    let planned = Offset { snapshot: Some(progress.clone()), ..offset(100, None) };
    let begun =
        SnapshotProgress { visible: "5:9:7".into(), start: Some("0/78".into()), ..progress };
    let begun = Offset { snapshot: Some(begun), ..offset(100, None) };
    let one_row = Offset { position: offset(0, Some((100, 0))).position, ..begun.clone() };
    let two_rows = Offset { position: offset(0, Some((100, 1))).position, ..begun.clone() };
    let complete = two_rows.clone().after_snapshot().unwrap();
    assert_eq!(complete.end_lsn, Lsn::from(0x78));
    assert_eq!(complete.snapshot, None);
    let steps = [&planned, &begun, &one_row, &two_rows, &complete].map(Offset::resume_point);
    assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    assert!(planned.after_snapshot().is_err());
}

#[test]
fn the_ledger_gets_a_line_per_interval() {
    let at = |second| Timestamp::from_second(second).unwrap();
    let mut pace = LedgerPace::new(Duration::from_secs(10));
    assert!(pace.due(at(100)));
    pace.written(at(100));
    assert!(!pace.due(at(109)));
    assert!(pace.due(at(110)));
    assert!(pace.due(at(50)), "a clock that was set back");
}
