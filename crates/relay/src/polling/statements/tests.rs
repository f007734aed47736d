use super::*;
use crate::snapshot::order::OrderColumn;

fn statements() -> Statements {
    let key = |name: &str, type_name: &str| OrderColumn {
        name: name.to_owned(),
        type_name: type_name.to_owned(),
    };
    Statements {
        table: "\"s\".\"outbox\"".into(),
        columns: vec!["event_id".into(), "payload".into()],
        keys: [key("at", "timestamp with time zone"), key("odd\"id", "uuid")]
            .into_iter()
            .map(|column| KeyColumn {
                quoted: identifier(&column.name),
                type_name: column.type_name,
            })
            .collect(),
        aggregate: ["\"aggregate_type\"".into(), "\"aggregate_id\"".into()],
        payload: "\"payload\"".into(),
        claimed_by: "\"claimed_by\"".into(),
        claimed_until: "\"claimed_until\"".into(),
        published_at: "\"published_at\"".into(),
        lease: Duration::from_millis(1500),
    }
}

#[test]
fn a_mark_names_rows_by_their_key_and_the_claimant() {
    let rows = [vec!["2026-01-01".to_owned(), "it's".to_owned()]];
    assert_eq!(
        statements().mark("me", &rows),
        "UPDATE \"s\".\"outbox\" o SET \"published_at\" = now() \
         FROM unnest(ARRAY['2026-01-01']::timestamp with time zone[], ARRAY['it''s']::uuid[]) \
         AS done(key_0, key_1) \
         WHERE o.\"claimed_by\" = 'me' AND o.\"published_at\" IS NULL \
         AND o.\"at\" = done.key_0 AND o.\"odd\"\"id\" = done.key_1"
    );
}

#[test]
fn the_lease_is_counted_by_the_server() {
    let claim = statements().claim("me", 7, 100);
    assert!(claim.contains("now() + '1500 milliseconds'::interval"), "{claim}");
    assert!(claim.contains("LIMIT 28") && claim.contains("LIMIT 7"), "{claim}");
    assert!(statements().renew("me").contains("now() + '1500 milliseconds'::interval"));
}
