//! Initialised PostgreSQL data folders, made once and copied for every server.
//!
//! `initdb` takes a second or more; copying its result takes a tenth of that. A template is keyed by
//! the server's full version and its folder, made under a file lock, and renamed into place whole.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::account::Account;
use crate::cache::{self, Lock};
use crate::error::{Error, Result};

/// Arguments of `initdb`, part of the template's key.
const INITDB: &[&str] = &[
    "--username=postgres",
    "--auth=trust",
    "--encoding=UTF8",
    if cfg!(target_os = "macos") { "--locale=C" } else { "--locale=C.UTF-8" },
    "--no-sync",
    "--no-instructions",
];

/// Puts a freshly initialised data folder at `target`. Blocks the thread.
pub(crate) fn instantiate(bin: &Path, account: Account, target: &Path) -> Result<()> {
    let template = ready(bin, account)?;
    copy(&template.join("data"), target, account)?;
    Ok(())
}

/// The template for these binaries, made if it is not there or no longer whole.
fn ready(bin: &Path, account: Account) -> Result<PathBuf> {
    let version = run(account, &bin.join("postgres"), &["--version"])?;
    let mut hasher = DefaultHasher::new();
    (&version, bin, INITDB).hash(&mut hasher);
    let folder = cache::folder("templates")?;
    let template = folder.join(format!("pg-{:016x}", hasher.finish()));
    if whole(&template) {
        return Ok(template);
    }
    let _lock = Lock::wait(&template.with_extension("lock"))?;
    if whole(&template) {
        return Ok(template);
    }
    let part = template.with_extension(format!("part-{}", std::process::id()));
    let _ = fs::remove_dir_all(&part);
    let _ = fs::remove_dir_all(&template);
    fs::create_dir(&part).map_err(Error::io("create", &part))?;
    account.give(&part, 0o700)?;
    let data = part.join("data");
    let data_arg = format!("--pgdata={}", data.display());
    let mut args = vec![data_arg.as_str()];
    args.extend(INITDB);
    run(account, &bin.join("initdb"), &args)?;
    let entries = count(&data).map_err(Error::io("read", &data))?;
    let manifest = part.join("entries");
    fs::write(&manifest, entries.to_string()).map_err(Error::io("write", &manifest))?;
    fs::rename(&part, &template).map_err(Error::io("rename", &part))?;
    Ok(template)
}

/// Whether nothing is missing: cleaners of temporary folders remove old empty folders one by one.
fn whole(template: &Path) -> bool {
    let wanted = fs::read_to_string(template.join("entries")).ok().and_then(|n| n.parse().ok());
    wanted.is_some() && wanted == count(&template.join("data")).ok()
}

fn count(folder: &Path) -> std::io::Result<u64> {
    let mut entries = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        entries += 1;
        if entry.file_type()?.is_dir() {
            entries += count(&entry.path())?;
        }
    }
    Ok(entries)
}

fn copy(from: &Path, to: &Path, account: Account) -> Result<()> {
    fs::create_dir(to).map_err(Error::io("create", to))?;
    account.give(to, 0o700)?;
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let entry = entry.map_err(Error::io("read", from))?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_type().map_err(Error::io("read", &source))?.is_dir() {
            copy(&source, &target, account)?;
        } else {
            fs::copy(&source, &target).map_err(Error::io("copy", &source))?;
            account.chown(&target)?;
        }
    }
    Ok(())
}

/// Runs a tool as the servers' account and returns what it printed.
pub(crate) fn run(account: Account, program: &Path, args: &[&str]) -> Result<String> {
    let output = account.command(program).args(args).output().map_err(|source| {
        let denied = source.kind() == std::io::ErrorKind::PermissionDenied;
        let advice = if denied && is_executable(program) {
            " (the servers do not run as root: put them where every user may read them)"
        } else {
            ""
        };
        Error::Io { what: format!("run {}{advice}", program.display()), source }
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = [output.stdout, output.stderr].concat();
    Err(Error::Tool {
        program: program.display().to_string(),
        output: String::from_utf8_lossy(&text).trim().to_owned(),
    })
}

fn is_executable(program: &Path) -> bool {
    fs::metadata(program).is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}
