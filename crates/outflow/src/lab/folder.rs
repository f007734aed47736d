//! The folder of a lab: its mark, its lock, its files.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::broker::{Broker, RedisUrl};
use super::database::Database;
use crate::failure::Refused;

/// Says that the folder is a lab.
const MARK: &str = "lab.json";
/// The form of the mark.
const VERSION: u32 = 1;

pub(super) const DATABASE: &str = "app.db";
pub(super) const DUAL_WRITE_DATABASE: &str = "dualwrite.db";
pub(super) const DUAL_WRITE: &str = "dualwrite.out";
pub(super) const ORDER_CHECK: &str = "order_check.out";
pub(super) const AT_LEAST_ONCE: &str = "atleastonce.out";
pub(super) const REPORT: &str = "report.txt";
/// The folder of the lab's own Redis.
const REDIS: &str = "redis";

/// Everything that a lab leaves in its folder, the mark last.
const FILES: [&str; 9] = [
    DATABASE,
    "app.db-journal",
    DUAL_WRITE_DATABASE,
    "dualwrite.db-journal",
    DUAL_WRITE,
    ORDER_CHECK,
    AT_LEAST_ONCE,
    REPORT,
    MARK,
];

/// The content of the mark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    what: String,
    version: u32,
    /// Tells this lab's keys from those of another one in the same Redis.
    id: String,
    /// Settled by the first step that needs one.
    redis: Option<Place>,
}

/// Which Redis a lab uses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Place {
    /// A throwaway one, in the folder.
    Own,
    /// The user's.
    Url {
        /// Without credentials.
        url: String,
        /// Whether it was given with credentials: then it has to be given again.
        credentials: bool,
    },
}

/// A lab: a folder with a mark.
#[derive(Debug)]
pub(super) struct Lab {
    dir: PathBuf,
    mark: Mark,
    given: Option<RedisUrl>,
    /// One step at a time; freed with the process, whatever ends it.
    _lock: Option<File>,
}

impl Lab {
    /// Makes the folder a lab, or opens it if it is one.
    pub(super) fn create(dir: &Path, given: Option<RedisUrl>) -> anyhow::Result<Self> {
        fs::create_dir_all(dir).with_context(|| cannot("be made", dir))?;
        let lock = lock(dir)?;
        if !dir.join(MARK).exists() {
            let mut entries = fs::read_dir(dir).with_context(|| cannot("be read", dir))?;
            if entries.next().is_some() {
                return Err(Refused(format!(
                    "{} is not a lab and holds other files: nothing was changed. Name another \
                     folder with --dir",
                    dir.display()
                ))
                .into());
            }
            let mark = Mark {
                what: "a folder of `outflow lab`; `outflow lab clean` removes it".to_owned(),
                version: VERSION,
                id: format!("{:016x}", rand::random::<u64>()),
                redis: None,
            };
            write_mark(dir, &mark)?;
        }
        Self::with_lock(dir, given, Some(lock))
    }

    /// Opens a lab for a step.
    pub(super) fn open(dir: &Path, given: Option<RedisUrl>) -> anyhow::Result<Self> {
        if !dir.is_dir() {
            return Err(no_lab(dir, "does not exist"));
        }
        Self::with_lock(dir, given, Some(lock(dir)?))
    }

    /// Opens a lab for a part of a step that another process is at.
    pub(super) fn open_beside(dir: &Path, given: Option<RedisUrl>) -> anyhow::Result<Self> {
        Self::with_lock(dir, given, None)
    }

    fn with_lock(dir: &Path, given: Option<RedisUrl>, lock: Option<File>) -> anyhow::Result<Self> {
        let text = match fs::read(dir.join(MARK)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(no_lab(dir, "is not a lab (it has no lab.json)"));
            }
            Err(error) => return Err(error).context(cannot("be read", &dir.join(MARK))),
        };
        let mark: Mark = serde_json::from_slice(&text).map_err(|error| {
            Refused(format!(
                "{} is not the mark of a lab: {error}. Nothing was changed; name another folder \
                 with --dir",
                dir.join(MARK).display()
            ))
        })?;
        if mark.version != VERSION {
            return Err(Refused(format!(
                "{} is a lab of another version of outflow ({}): name another folder with --dir",
                dir.display(),
                mark.version
            ))
            .into());
        }
        Ok(Self { dir: dir.to_owned(), mark, given, _lock: lock })
    }

    /// Where it is.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of one of its files.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// What tells this lab from others.
    pub(super) fn id(&self) -> &str {
        &self.mark.id
    }

    /// The folder of its own Redis.
    pub(super) fn redis_home(&self) -> PathBuf {
        self.dir.join(REDIS)
    }

    /// The Redis that was named on this command line.
    pub(super) fn given(&self) -> Option<&RedisUrl> {
        self.given.as_ref()
    }

    /// The Redis that was settled on before.
    pub(super) fn place(&self) -> Option<&Place> {
        self.mark.redis.as_ref()
    }

    /// Settles on a Redis, for this step and all later ones.
    pub(super) fn settle(&mut self, place: Place) -> anyhow::Result<()> {
        if self.mark.redis.as_ref() != Some(&place) {
            self.mark.redis = Some(place);
            write_mark(&self.dir, &self.mark)?;
        }
        Ok(())
    }

    /// The business database, which `init` has made.
    pub(super) fn database(&self) -> anyhow::Result<Database> {
        let path = self.path(DATABASE);
        if !path.exists() {
            return Err(self.missing(&format!("there is no {}", path.display()), "init"));
        }
        Database::open(path)
    }

    /// The broker; started if it is the lab's own.
    pub(super) async fn broker(&mut self) -> anyhow::Result<Broker> {
        Broker::connect(self).await
    }

    /// Writes a file; it appears whole or not at all.
    pub(super) fn write(&self, name: &str, text: &str) -> anyhow::Result<()> {
        write(&self.dir, name, text)
    }

    /// Reads a file, if it is there.
    pub(super) fn read(&self, name: &str) -> anyhow::Result<Option<String>> {
        match fs::read(self.path(name)) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(cannot("be read", &self.path(name))),
        }
    }

    /// The refusal of a step that comes too early.
    pub(super) fn missing(&self, what: &str, step: &str) -> anyhow::Error {
        Refused(format!("{what}: run `{}` first", self.command(step))).into()
    }

    /// A command line for this lab.
    pub(super) fn command(&self, step: &str) -> String {
        command(&self.dir, step)
    }

    /// Removes the lab's own files, and the folder if nothing else is in it. Returns whether the
    /// folder is gone.
    pub(super) fn remove(self) -> anyhow::Result<bool> {
        match fs::remove_dir_all(self.redis_home()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).context(cannot("be removed", &self.redis_home()));
            }
            _ => {}
        }
        for name in FILES {
            match fs::remove_file(self.path(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(error).context(cannot("be removed", &self.path(name)));
                }
                _ => {}
            }
        }
        match fs::remove_dir(&self.dir) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) => Err(error).context(cannot("be removed", &self.dir)),
        }
    }
}

/// A command line for the lab in `dir`.
fn command(dir: &Path, step: &str) -> String {
    if dir == Path::new(super::DEFAULT_DIR) {
        return format!("outflow lab {step}");
    }
    format!("outflow lab {step} --dir {}", quote(dir))
}

/// A path as a shell takes it.
pub(super) fn quote(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:,@%".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

fn no_lab(dir: &Path, why: &str) -> anyhow::Error {
    let init = command(dir, "init");
    Refused(format!("{} {why}: run `{init}` first, or name the lab with --dir", dir.display()))
        .into()
}

/// A lock on the folder itself: no file is left behind.
fn lock(dir: &Path) -> anyhow::Result<File> {
    let folder = File::open(dir).with_context(|| cannot("be opened", dir))?;
    match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(folder),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Refused(format!(
            "another step is at work in {}: wait until it has ended",
            dir.display()
        ))
        .into()),
        Err(error) => Err(error).context(cannot("be locked", dir)),
    }
}

fn write_mark(dir: &Path, mark: &Mark) -> anyhow::Result<()> {
    write(dir, MARK, &(serde_json::to_string_pretty(mark)? + "\n"))
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let path = dir.join(name);
    let put = || {
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        io::Write::write_all(&mut file, text.as_bytes())?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        file.as_file().set_permissions(mode)?;
        file.persist(&path)?;
        io::Result::Ok(())
    };
    put().with_context(|| cannot("be written", &path))
}

fn cannot(what: &str, path: &Path) -> String {
    format!("{} cannot {what}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_can_be_pasted() {
        assert_eq!(command(Path::new("./outbox-lab"), "relay"), "outflow lab relay");
        assert_eq!(command(Path::new("/tmp/x"), "relay"), "outflow lab relay --dir /tmp/x");
        assert_eq!(command(Path::new("my lab"), "relay"), "outflow lab relay --dir 'my lab'");
        assert_eq!(quote(Path::new("it's")), r"'it'\''s'");
    }
}
