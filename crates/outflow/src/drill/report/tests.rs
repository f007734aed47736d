use super::*;

fn done(recoveries: &[u64], lost: u64) -> Done {
    let drill = crate::drill::list::all().next().unwrap();
    let outcome = Outcome {
        injected: vec!["a kill".to_owned(); recoveries.len()],
        recoveries: recoveries.iter().map(|seconds| Duration::from_secs(*seconds)).collect(),
        events: 10,
        lost,
        faults: if lost > 0 { vec!["lost: 1\n".to_owned()] } else { Vec::new() },
        ..Outcome::default()
    };
    Done { drill, seed: 7, times: TIMES, outcome, error: None, took: Duration::from_millis(1234) }
}

fn report(done: Vec<Done>) -> Report {
    Report { done, seed: 42, soak: false, explain: false }
}

#[test]
fn recovery_has_a_median_and_a_worst_in_every_form() {
    let done = done(&[3, 1, 9], 0);
    let json: serde_json::Value = serde_json::from_str(&done.json().unwrap()).unwrap();
    assert_eq!(json["recovery_median_seconds"], 3.0);
    assert_eq!(json["recovery_worst_seconds"], 9.0);
    let report = report(vec![done]);
    assert!(report.markdown("servers").contains("| 3.0 s | 9.0 s | yes |"));
    let text = report.to_string();
    let cells =
        |line: &str| line.split(['│', '┆']).map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let row = |mark: &str| cells(text.lines().find(|line| line.contains(mark)).unwrap());
    let (header, row) = (row("recovery"), row("publish-unmarked"));
    let under = |name: &str| &row[header.iter().position(|cell| cell == name).unwrap()];
    assert_eq!((under("faults").as_str(), under("events").as_str()), ("3", "10"), "{text}");
    assert_eq!(under("recovery median"), "3.0 s", "{text}");
    assert_eq!(under("worst"), "9.0 s", "{text}");
}

#[test]
fn a_soak_prints_what_it_did() {
    let mut soak = report(vec![done(&[1], 0)]);
    assert!(!soak.to_string().contains("a kill"));
    soak.soak = true;
    let text = soak.to_string();
    assert!(text.contains("publish-unmarked --seed 7\n  did   a kill\n"), "{text}");
    assert!(text.contains("reordered 0, seed 42"), "{text}");
}

#[test]
fn figures_of_one_drill_are_added_up() {
    let report = report(vec![done(&[1, 9], 0), done(&[2], 0)]);
    assert!(report.passed());
    let text = report.markdown("servers");
    assert!(text.contains("2 of 2 drills passed: 3 faults, 20 events, lost 0"), "{text}");
    assert!(text.contains("| 3 | 20 | 0 | 0 | 0 | 2.0 s | 9.0 s | yes |"), "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("| publish-unmarked")).count(), 1);
}

#[test]
fn a_drill_that_cannot_be_run_here_is_counted_by_itself() {
    let mut skipped = done(&[], 0);
    skipped.outcome.skipped = Some("needs PostgreSQL 17".to_owned());
    assert!(skipped.line().starts_with("skipped"), "{}", skipped.line());
    assert!(skipped.json().unwrap().contains(r#""skipped":"needs PostgreSQL 17""#));
    let report = report(vec![done(&[1], 0), skipped]);
    assert!(report.passed());
    let text = report.to_string();
    assert!(text.contains("1 of 2 drills passed, 1 skipped: 1 faults"), "{text}");
}

#[test]
fn json_is_one_object_and_says_why_it_failed() {
    let json: serde_json::Value = serde_json::from_str(&done(&[1], 1).json().unwrap()).unwrap();
    assert_eq!(
        (&json["passed"], &json["lost"], &json["seconds"]),
        (&false.into(), &1.into(), &1.234.into())
    );
    assert_eq!(json["problems"][0], "lost: 1\n");
    let failed = report(vec![done(&[], 1)]);
    assert!(!failed.passed());
    let again = "failed, again by: outflow drill publish-unmarked --seed 7";
    assert!(failed.to_string().contains(again), "{failed}");
    assert!(!report(Vec::new()).passed(), "nothing was drilled");
}
