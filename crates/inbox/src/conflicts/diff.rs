//! What differs between two JSON documents, place by place.
//!
//! Crates for this (json-patch, serde_json_diff, treediff) compare `serde_json::Value`, which holds a
//! number as a double: two amounts that differ in their 17th digit would be shown as equal, and a
//! number beyond the range of a double not at all. Here a number stays the text that it is, and two
//! numbers are equal where PostgreSQL's `numeric` says so.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Objects and arrays nested deeper than this are compared as a whole.
const MAX_DEPTH: usize = 100;

/// A place at which two documents differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Where, as a JSON pointer (RFC 6901); empty for the document as a whole.
    pub path: String,
    /// What the first document has there, as JSON text; `None`: nothing.
    pub applied: Option<String>,
    /// What the second document has there; `None`: nothing.
    pub refused: Option<String>,
}

/// Compares two JSON documents, each `None` where there is no payload at all.
///
/// Objects are compared key by key, arrays place by place, in the order of keys and places. Text that
/// is no JSON is one difference, as a whole.
///
/// ```
/// use outflow_inbox::conflicts::differences;
///
/// let found = differences(Some(r#"{"a": 1.0, "b": [1, 2]}"#), Some(r#"{"b": [1, 3], "a": 1}"#));
/// assert_eq!(found.len(), 1);
/// assert_eq!(found[0].path, "/b/1");
/// assert_eq!(found[0].refused.as_deref(), Some("3"));
/// ```
#[must_use]
pub fn differences(applied: Option<&str>, refused: Option<&str>) -> Vec<Difference> {
    let mut found = Vec::new();
    match (applied, refused) {
        (None, None) => {}
        (Some(applied), Some(refused)) => match (node(applied), node(refused)) {
            (Some(applied), Some(refused)) => {
                compare(&mut String::new(), applied, refused, 0, &mut found);
            }
            _ if applied == refused => {}
            _ => found.push(whole(Some(applied), Some(refused))),
        },
        _ => found.push(whole(applied, refused)),
    }
    found
}

fn whole(applied: Option<&str>, refused: Option<&str>) -> Difference {
    Difference {
        path: String::new(),
        applied: applied.map(str::to_owned),
        refused: refused.map(str::to_owned),
    }
}

fn node(text: &str) -> Option<&RawValue> {
    serde_json::from_str(text).ok()
}

fn compare(
    path: &mut String,
    applied: &RawValue,
    refused: &RawValue,
    depth: usize,
    found: &mut Vec<Difference>,
) {
    let (left, right) = (applied.get(), refused.get());
    if left == right {
        return;
    }
    if depth < MAX_DEPTH {
        if let (Some(left), Some(right)) = (object(left), object(right)) {
            let mut keys: Vec<&String> = left.keys().chain(right.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            for key in keys {
                let escaped = key.replace('~', "~0").replace('/', "~1");
                at(path, &escaped, left.get(key).copied(), right.get(key).copied(), depth, found);
            }
            return;
        }
        if let (Some(left), Some(right)) = (array(left), array(right)) {
            for place in 0..left.len().max(right.len()) {
                let (left, right) = (left.get(place).copied(), right.get(place).copied());
                at(path, &place.to_string(), left, right, depth, found);
            }
            return;
        }
    }
    if !same_scalar(left, right) {
        let (applied, refused) = (Some(left.to_owned()), Some(right.to_owned()));
        found.push(Difference { path: path.clone(), applied, refused });
    }
}

/// One step down, to `name`.
fn at(
    path: &mut String,
    name: &str,
    applied: Option<&RawValue>,
    refused: Option<&RawValue>,
    depth: usize,
    found: &mut Vec<Difference>,
) {
    let above = path.len();
    path.push('/');
    path.push_str(name);
    match (applied, refused) {
        (Some(applied), Some(refused)) => compare(path, applied, refused, depth + 1, found),
        (applied, refused) => found.push(Difference {
            path: path.clone(),
            applied: applied.map(|value| value.get().to_owned()),
            refused: refused.map(|value| value.get().to_owned()),
        }),
    }
    path.truncate(above);
}

fn object(text: &str) -> Option<BTreeMap<String, &RawValue>> {
    if text.starts_with('{') { serde_json::from_str(text).ok() } else { None }
}

fn array(text: &str) -> Option<Vec<&RawValue>> {
    if text.starts_with('[') { serde_json::from_str(text).ok() } else { None }
}

fn same_scalar(left: &str, right: &str) -> bool {
    if left.starts_with('"') && right.starts_with('"') {
        // the same text may be escaped in two ways
        let text = |quoted: &str| serde_json::from_str::<String>(quoted).ok();
        return text(left).zip(text(right)).is_some_and(|(left, right)| left == right);
    }
    match (Number::read(left), Number::read(right)) {
        (Some(left), Some(right)) => left == right,
        _ => false,
    }
}

/// A number without the freedom of writing it in several ways: `digits * 10^exponent`, digits without
/// zeros at either end. Zero has no digits.
#[derive(PartialEq, Eq)]
struct Number {
    negative: bool,
    digits: String,
    exponent: i64,
}

impl Number {
    /// `None` where `text` is no number of JSON.
    fn read(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        if !rest.starts_with(|first: char| first.is_ascii_digit()) {
            return None;
        }
        let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let digits = format!("{whole}{fraction}");
        let trimmed = digits.trim_end_matches('0');
        let scale = i64::try_from(digits.len() - trimmed.len()).ok()?;
        let fraction = i64::try_from(fraction.len()).ok()?;
        let exponent = exponent.parse::<i64>().ok()?.checked_sub(fraction)?.checked_add(scale)?;
        let digits = trimmed.trim_start_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self { negative: false, digits, exponent: 0 });
        }
        Some(Self { negative, digits, exponent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn found(applied: &str, refused: &str) -> Vec<(String, Option<String>, Option<String>)> {
        differences(Some(applied), Some(refused))
            .into_iter()
            .map(|difference| (difference.path, difference.applied, difference.refused))
            .collect()
    }

    fn one(
        path: &str,
        applied: &str,
        refused: &str,
    ) -> Vec<(String, Option<String>, Option<String>)> {
        let text = |text: &str| Some(text.to_owned()).filter(|text| text != "nothing");
        vec![(path.to_owned(), text(applied), text(refused))]
    }

    #[test]
    fn what_jsonb_calls_equal_is_no_difference() {
        for (applied, refused) in [
            (r#"{"a":1,"b":2}"#, r#" { "b" : 2, "a" : 1 } "#),
            ("1.0", "1"),
            ("-0.0", "0"),
            ("1.50e2", "150"),
            ("1e400", "10e399"),
            (r#""\u00e9""#, "\"\u{e9}\""),
            ("[1, [2]]", "[1,[2.00]]"),
        ] {
            assert_eq!(found(applied, refused), [], "{applied} {refused}");
        }
        assert_eq!(differences(None, None), []);
    }

    #[test]
    fn c24_digits_beyond_a_double_are_told_apart() {
        assert_eq!(
            found("{\"amount\": 9007199254740993}", "{\"amount\": 9007199254740992}"),
            one("/amount", "9007199254740993", "9007199254740992")
        );
        assert_eq!(
            found("[0.1234567890123456789]", "[0.1234567890123456788]"),
            one("/0", "0.1234567890123456789", "0.1234567890123456788")
        );
    }

    #[test]
    fn a_place_is_named_by_a_pointer() {
        assert_eq!(found(r#"{"a/b":{"~":1}}"#, r#"{"a/b":{"~":2}}"#), one("/a~1b/~0", "1", "2"));
        assert_eq!(found(r#"{"a":1}"#, "{}"), one("/a", "1", "nothing"));
        assert_eq!(found("[1]", r#"[1,{"b":2}]"#), one("/1", "nothing", r#"{"b":2}"#));
        assert_eq!(found(r#"{"a":null}"#, "{}"), one("/a", "null", "nothing"));
        assert_eq!(found("[]", "{}"), one("", "[]", "{}"));
    }

    #[test]
    fn c22_c27_what_is_no_json_or_not_there_differs_as_a_whole() {
        assert_eq!(found("{", "{}"), one("", "{", "{}"));
        assert_eq!(found("{", "{"), []);
        let none = differences(None, Some("null"));
        assert_eq!((none[0].applied.as_deref(), none[0].refused.as_deref()), (None, Some("null")));
    }

    #[test]
    fn depth_is_bounded() {
        let nested = |value: u8| format!("{}{value}{}", "[".repeat(5_000), "]".repeat(5_000));
        let found = differences(Some(&nested(1)), Some(&nested(2)));
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path.matches("/0").count(), MAX_DEPTH);
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(serde_json::Value::Null),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            "[a-c~/]{0,2}".prop_map(Into::into),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
                prop::collection::btree_map("[a-c~/]{0,2}", inner, 0..4)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        /// Every difference names what both sides have at its place, and no difference means equal.
        #[test]
        fn differences_are_true_and_complete(applied in json(), refused in json()) {
            let found = differences(Some(&applied.to_string()), Some(&refused.to_string()));
            prop_assert_eq!(found.is_empty(), applied == refused);
            for Difference { path, applied: left, refused: right } in found {
                let text = |value: Option<&serde_json::Value>| value.map(ToString::to_string);
                prop_assert_eq!(text(applied.pointer(&path)), left);
                prop_assert_eq!(text(refused.pointer(&path)), right);
            }
        }
    }
}
