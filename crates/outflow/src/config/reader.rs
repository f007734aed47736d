//! Reads typed settings out of the layers, and notes every mistake instead of stopping at the first.
//!
//! Reading a key makes it known: what was not read at the end is unknown, and the nearest known key
//! is suggested. So the code that reads the settings is the only list of them.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::layers::{Layers, PREFIX};
use super::problem::Problem;
use super::redact;
use super::size::ByteSize;
use super::value::{Origin, Sourced, Value};

/// A setting in force, for `outflow config`.
#[derive(Debug, Clone)]
pub(crate) struct Setting {
    /// Dotted key.
    pub(crate) key: &'static str,
    /// Value, secrets hidden.
    pub(crate) shown: Value,
    /// Where it was set; `None` for a default.
    pub(crate) origin: Option<Origin>,
}

/// Hands out values by key.
pub(super) struct Reader {
    values: BTreeMap<String, Sourced>,
    suspects: Vec<String>,
    settings: Vec<Setting>,
    problems: Vec<Problem>,
}

impl Reader {
    pub(super) fn new(layers: Layers) -> Self {
        Self {
            values: layers.values,
            suspects: layers.suspects,
            settings: Vec::new(),
            problems: layers.problems,
        }
    }

    /// Text that `check` accepts; its error says what is allowed.
    pub(super) fn text(
        &mut self,
        key: &'static str,
        default: &str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> String {
        self.any(key, default.to_owned(), |value| {
            let Value::Text(text) = value else {
                // what is allowed, said as for a text; only the quotes may be missing
                let allowed = check(&value.to_string()).err();
                return Err(allowed.unwrap_or_else(|| "expected a text in quotes".to_owned()));
            };
            check(text).map(|()| text.clone())
        })
    }

    /// A URL, whose password is never shown.
    pub(super) fn url(
        &mut self,
        key: &'static str,
        default: &str,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> String {
        let url = self.text(key, default, check);
        if let Some(setting) = self.settings.last_mut() {
            setting.shown = Value::Text(redact::url(&url));
        }
        url
    }

    /// A whole number within `range`.
    pub(super) fn integer(
        &mut self,
        key: &'static str,
        default: u32,
        range: RangeInclusive<u32>,
    ) -> u32 {
        let number = self.any(key, i64::from(default), |value| {
            let number = match value {
                Value::Integer(number) => Some(*number),
                Value::Text(text) => text.trim().replace('_', "").parse().ok(),
                _ => None,
            };
            number
                .filter(|number| u32::try_from(*number).is_ok_and(|n| range.contains(&n)))
                .ok_or_else(|| {
                    format!("expected a whole number from {} to {}", range.start(), range.end())
                })
        });
        u32::try_from(number).unwrap_or(default)
    }

    /// A duration within `range`, written like `10s` or `1m 30s`.
    pub(super) fn duration(
        &mut self,
        key: &'static str,
        default: Duration,
        range: RangeInclusive<Duration>,
    ) -> Duration {
        self.shown(
            key,
            default,
            |duration| humantime::format_duration(*duration).to_string(),
            |text| {
                humantime::parse_duration(text)
                    .ok()
                    .filter(|duration| range.contains(duration))
                    .ok_or_else(|| {
                        format!(
                            "expected a duration from {} to {}, for example \"{}\"",
                            humantime::format_duration(*range.start()),
                            humantime::format_duration(*range.end()),
                            humantime::format_duration(default)
                        )
                    })
            },
        )
    }

    /// A number of bytes within `range`, written like `16MiB`.
    pub(super) fn size(
        &mut self,
        key: &'static str,
        default: ByteSize,
        range: RangeInclusive<ByteSize>,
    ) -> usize {
        let size = self.shown(key, default, ByteSize::to_string, |text| {
            text.parse().ok().filter(|size| range.contains(size)).ok_or_else(|| {
                format!(
                    "expected a size from {} to {}, for example \"{default}\" (units: B, KiB, MiB, GiB)",
                    range.start(),
                    range.end()
                )
            })
        });
        size.0
    }

    /// `default` or one of a few other words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &'static str,
        default: (&'static str, T),
        others: &[(&'static str, T)],
    ) -> T {
        let all = || std::iter::once(&default).chain(others);
        let name = self.text(key, default.0, |text| {
            if all().any(|(name, _)| *name == text) {
                return Ok(());
            }
            let names: Vec<_> = all().map(|(name, _)| format!("\"{name}\"")).collect();
            Err(format!("expected {}", names.join(" or ")))
        });
        all().find(|(known, _)| *known == name).map_or(default.1, |(_, value)| *value)
    }

    /// A value that is written as a text and shown by `show`.
    pub(super) fn shown<T>(
        &mut self,
        key: &'static str,
        default: T,
        show: impl Fn(&T) -> String,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> T {
        let text = self.text(key, &show(&default), |text| parse(text).map(|_| ()));
        let value = parse(&text).unwrap_or(default);
        if let Some(setting) = self.settings.last_mut() {
            setting.shown = Value::Text(show(&value));
        }
        value
    }

    /// A list of texts; in the environment and in flags also `a,b,c`.
    pub(super) fn list(
        &mut self,
        key: &'static str,
        default: &[&str],
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Vec<String> {
        let default = default.iter().map(|text| Value::Text((*text).to_owned())).collect();
        let list = self.any(key, Value::List(default), |value| {
            let items = match value {
                Value::List(items) => items.clone(),
                Value::Text(text) => split(text),
                _ => return Err("expected a list of texts, for example [\"a\", \"b\"]".to_owned()),
            };
            for item in &items {
                let Value::Text(text) = item else {
                    return Err(format!("expected texts in the list, found {item}"));
                };
                check(text)?;
            }
            Ok(Value::List(items))
        });
        let Value::List(items) = list else { return Vec::new() };
        items
            .into_iter()
            .filter_map(|item| match item {
                Value::Text(text) => Some(text),
                _ => None,
            })
            .collect()
    }

    /// Whether the key was set by somebody.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.settings.iter().any(|setting| setting.key == key && setting.origin.is_some())
    }

    /// Whether the key was set by a flag.
    pub(super) fn is_flag(&self, key: &str) -> bool {
        let by_flag = |setting: &&Setting| matches!(setting.origin, Some(Origin::Flag(_)));
        self.settings.iter().filter(by_flag).any(|setting| setting.key == key)
    }

    /// Notes a mistake that concerns `key` together with others.
    pub(super) fn problem(&mut self, key: &'static str, message: impl Display) {
        let setting = self.settings.iter().find(|setting| setting.key == key);
        let subject = setting.map_or_else(
            || key.to_owned(),
            |setting| subject(key, &setting.shown, setting.origin.as_ref()),
        );
        self.problems.push(Problem::new(subject, message.to_string()));
    }

    fn any<T: Clone + Into<Value>>(
        &mut self,
        key: &'static str,
        default: T,
        parse: impl Fn(&Value) -> Result<T, String>,
    ) -> T {
        let Some(Sourced { value, origin }) = self.values.remove(key) else {
            self.settings.push(Setting { key, shown: default.clone().into(), origin: None });
            return default;
        };
        let parsed = parse(&value).unwrap_or_else(|message| {
            let value = match &value {
                Value::Text(text) => Value::Text(redact::url(text)),
                other => other.clone(),
            };
            self.problems.push(Problem::new(subject(key, &value, Some(&origin)), message));
            default
        });
        self.settings.push(Setting { key, shown: parsed.clone().into(), origin: Some(origin) });
        parsed
    }

    /// Ends the reading: everything that is in force, and everything that is wrong.
    pub(super) fn finish(mut self) -> (Vec<Setting>, Vec<Problem>) {
        let known: Vec<_> = self.settings.iter().map(|setting| setting.key).collect();
        for (key, Sourced { origin, .. }) in &self.values {
            let section = format!("{key}.");
            let message = match known.iter().find(|known| known.starts_with(&section)) {
                Some(first) => format!("is a section, not a value; it has keys such as `{first}`"),
                None => format!("no such key{}", super::suggest::nearest(key, &known)),
            };
            self.problems.push(Problem::new(format!("{key} ({origin})"), message));
        }
        for name in &self.suspects {
            let rest = name.strip_prefix(PREFIX).unwrap_or(name).to_ascii_lowercase();
            if let Some(key) = known.iter().find(|key| key.replace('.', "_") == rest) {
                let variable = key.to_ascii_uppercase().replace('.', "__");
                let message = format!("sections are separated by `__`: use {PREFIX}{variable}");
                self.problems.push(Problem::new(format!("variable {name}"), message));
            }
        }
        (self.settings, self.problems)
    }
}

fn subject(key: &str, value: &Value, origin: Option<&Origin>) -> String {
    match origin {
        Some(origin) => format!("{key} = {value} ({origin})"),
        None => format!("{key} = {value} (default)"),
    }
}

/// `a,b` or `["a", "b"]`.
fn split(text: &str) -> Vec<Value> {
    if text.trim_start().starts_with('[')
        && let Ok(toml::Value::Array(items)) = text.parse()
    {
        return items
            .iter()
            .map(|item| match item {
                toml::Value::String(text) => Value::Text(text.clone()),
                other => Value::Other(other.type_str()),
            })
            .collect();
    }
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(|item| Value::Text(item.to_owned())).collect()
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Value {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}
