//! The configuration: one TOML file, environment variables over it, flags over both, checked as a
//! whole.
//!
//! | module | does |
//! | --- | --- |
//! | `layers` | collects values with their origins from file, environment and flags |
//! | `reader` | hands them out typed and within limits, notes every mistake and every unknown key |
//! | `settings` | is the list of all settings with their defaults |
//! | `consumer`, `polling`, `retention` | are those of `[consumer]`, `[polling]` and `[retention]` |
//! | `check` | knows the forms of single values: names, URLs, addresses |
//! | `libraries` | makes of them what the connector and the inbox take |
//! | `show` | is the command `outflow config` |

mod check;
mod consumer;
mod layers;
mod libraries;
mod polling;
mod problem;
mod reader;
pub(crate) mod redact;
mod retention;
mod settings;
pub(crate) mod show;
mod size;
mod suggest;
mod value;

use std::path::PathBuf;

pub(crate) use layers::Sources;
pub(crate) use problem::{Problem, Problems};
pub(crate) use reader::Setting;
pub(crate) use settings::{Config, LogFormat};

use crate::cli::Global;

impl Sources {
    /// The file that `global` names or `outflow.toml`, the process's environment, and flags.
    ///
    /// # Errors
    /// A `--set` that is not `key=value`.
    pub(crate) fn of_process(
        global: &Global,
        flags: &[(&str, &str, Option<&str>)],
    ) -> Result<Self, Problems> {
        let mut own = Vec::new();
        for pair in &global.set {
            let Some((key, value)) = pair.split_once('=') else {
                let message = "expected KEY=VALUE, for example sink.batch_entries=100";
                return Err(Problems(vec![Problem::new(format!("flag --set {pair}"), message)]));
            };
            own.push(("--set".to_owned(), key.trim().to_owned(), value.trim().to_owned()));
        }
        let own_flags = [
            ("--log-level", "log.level", global.log_level.as_deref()),
            ("--log-format", "log.format", global.log_format.map(LogFormat::name)),
        ];
        for (flag, key, value) in flags.iter().chain(&own_flags) {
            if let Some(value) = value {
                own.push(((*flag).to_owned(), (*key).to_owned(), (*value).to_owned()));
            }
        }
        Ok(Self {
            file: global.config.clone(),
            default_file: Some(PathBuf::from("outflow.toml")),
            // a variable that is not UTF-8 cannot be a setting of ours
            environment: std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
            flags: own,
        })
    }
}

#[cfg(test)]
mod tests;
