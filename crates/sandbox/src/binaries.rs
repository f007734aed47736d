//! Finding the servers' programs on this machine.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

#[cfg(test)]
mod tests;

/// Which program to look for, and where.
struct Search {
    program: &'static str,
    package: &'static str,
    variable: &'static str,
    /// Folders that systems use and that are not on PATH.
    usual: fn() -> Vec<PathBuf>,
}

/// The folder that holds `postgres`, `initdb` and PostgreSQL's other tools: this one if it is given.
pub(crate) fn postgres(given: Option<&Path>) -> Result<PathBuf> {
    find_in_environment(
        given,
        &Search {
            program: "postgres",
            package: "postgresql",
            variable: "OUTFLOW_PG_BIN",
            usual: || {
                let mut folders = versions("/usr/lib/postgresql", "");
                folders.extend(versions("/usr", "pgsql-"));
                folders.push("/usr/local/pgsql/bin".into());
                folders.extend(versions("/opt/homebrew/opt", "postgresql@"));
                folders.extend(versions("/usr/local/opt", "postgresql@"));
                folders
            },
        },
    )
}

/// The folder that holds `redis-server`: this one if it is given.
pub(crate) fn redis(given: Option<&Path>) -> Result<PathBuf> {
    find_in_environment(
        given,
        &Search {
            program: "redis-server",
            package: "redis-server",
            variable: "OUTFLOW_REDIS_BIN",
            usual: || {
                ["/usr/local/bin", "/opt/homebrew/bin", "/opt/redis/bin", "/usr/sbin"]
                    .map(PathBuf::from)
                    .to_vec()
            },
        },
    )
}

/// `parent/<prefix>N/bin` for every N, highest first.
fn versions(parent: &str, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path().join("bin")))
        })
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, folder)| folder).collect()
}

fn find_in_environment(given: Option<&Path>, search: &Search) -> Result<PathBuf> {
    let variable = env::var_os(search.variable).filter(|folder| !folder.is_empty());
    let chosen = given.map(Path::to_path_buf).or(variable.map(PathBuf::from));
    find(chosen, env::var_os("PATH"), search)
}

/// Looks in the chosen folder only, or else in those of PATH and the usual ones.
fn find(chosen: Option<PathBuf>, path: Option<OsString>, search: &Search) -> Result<PathBuf> {
    let looked_in = match &chosen {
        Some(folder) => folder.display().to_string(),
        None => "PATH and the usual folders".into(),
    };
    let folders: Vec<PathBuf> = match chosen {
        Some(folder) => vec![folder],
        None => path.iter().flat_map(env::split_paths).chain((search.usual)()).collect(),
    };
    folders.iter().find_map(|folder| holds(folder, search.program)).ok_or(Error::Missing {
        program: search.program,
        package: search.package,
        variable: search.variable,
        looked_in,
    })
}

/// The folder of the program itself: PostgreSQL finds its other files relative to it, and a link on
/// PATH seldom comes with links to all the tools.
fn holds(folder: &Path, program: &str) -> Option<PathBuf> {
    let file = fs::canonicalize(folder.join(program)).ok()?;
    file.is_file().then(|| file.parent().map(Path::to_path_buf))?
}
