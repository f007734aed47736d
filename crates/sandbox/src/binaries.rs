//! Finding the servers' programs on this machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// Which program to look for, and where.
struct Search {
    program: &'static str,
    package: &'static str,
    variable: &'static str,
    /// Folders that systems use and that are not on PATH.
    usual: fn() -> Vec<PathBuf>,
}

/// The folder that holds `postgres`, `initdb` and PostgreSQL's other tools.
pub(crate) fn postgres() -> Result<PathBuf> {
    find(&Search {
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
    })
}

/// The folder that holds `redis-server`.
pub(crate) fn redis() -> Result<PathBuf> {
    find(&Search {
        program: "redis-server",
        package: "redis-server",
        variable: "OUTFLOW_REDIS_BIN",
        usual: || {
            ["/usr/local/bin", "/opt/homebrew/bin", "/opt/redis/bin", "/usr/sbin"]
                .map(PathBuf::from)
                .to_vec()
        },
    })
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

fn find(search: &Search) -> Result<PathBuf> {
    let chosen = env::var_os(search.variable).filter(|folder| !folder.is_empty());
    let folders = match &chosen {
        Some(folder) => vec![PathBuf::from(folder)],
        None => {
            env::var_os("PATH").iter().flat_map(env::split_paths).chain((search.usual)()).collect()
        }
    };
    folders.iter().find_map(|folder| holds(folder, search.program)).ok_or_else(|| Error::Missing {
        program: search.program,
        package: search.package,
        variable: search.variable,
        looked_in: match chosen {
            Some(folder) => format!("{}={}", search.variable, folder.display()),
            None => "PATH and the usual folders".into(),
        },
    })
}

/// The folder of the program itself: PostgreSQL finds its other files relative to it, and a link on
/// PATH seldom comes with links to all the tools.
fn holds(folder: &Path, program: &str) -> Option<PathBuf> {
    let file = fs::canonicalize(folder.join(program)).ok()?;
    file.is_file().then(|| file.parent().map(Path::to_path_buf))?
}
