//! `outflow config`: the configuration in force, with the origin of everything that is not a default.

use std::fmt::Write as _;
use std::process::ExitCode;

use crate::cli::Global;
use crate::config::{Config, Setting, Sources};

/// Shows the configuration in force, secrets hidden
///
/// Reads file, environment and flags as every other command does, and fails as they do, with all
/// mistakes at once: use it to check a configuration before a deployment.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  outflow config                              what is in force, and where it was set
  outflow config > outflow.toml               a complete file to start from: defaults as comments,
                                              passwords masked
  outflow --config prod.toml config --json    for scripts")]
pub(crate) struct Args {
    /// JSON instead of TOML: an object of key to value and origin
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args, global: &Global) -> anyhow::Result<ExitCode> {
    let config = Config::load(&Sources::of_process(global, &[])?)?;
    if args.json {
        crate::output::json(&to_json(&config.settings))?;
    } else {
        crate::output::text(&to_toml(&config.settings))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(settings: &[Setting]) -> serde_json::Value {
    let entry = |setting: &Setting| {
        let origin = setting.origin.as_ref().map_or("default".to_owned(), ToString::to_string);
        let value = serde_json::json!({ "value": setting.shown.to_json(), "origin": origin });
        (setting.key.to_owned(), value)
    };
    serde_json::Value::Object(settings.iter().map(entry).collect())
}

/// Every key under its section. The top level comes first, as TOML needs it.
fn to_toml(settings: &[Setting]) -> String {
    let mut sections: Vec<(&str, Vec<&Setting>)> = vec![("", Vec::new())];
    for setting in settings {
        let section = setting.key.rsplit_once('.').map_or("", |(section, _)| section);
        match sections.iter_mut().find(|(name, _)| *name == section) {
            Some((_, members)) => members.push(setting),
            None => sections.push((section, vec![setting])),
        }
    }
    let mut text = String::new();
    for (section, members) in sections {
        if !section.is_empty() {
            let _ = write!(text, "\n[{section}]\n");
        }
        for setting in members {
            let name = setting.key.rsplit('.').next().unwrap_or_default();
            let line = format!("{name} = {}", setting.shown);
            let _ = match &setting.origin {
                Some(origin) => writeln!(text, "{line:<40} # {origin}"),
                // a default may depend on the machine, and a later version may know a better one
                None => writeln!(text, "# {line}"),
            };
        }
    }
    text
}
