//! The password file: `host:port:database:user:password`, one a line, `*` for any, `\` before `:` and `\`
//! (PostgreSQL documentation, "The Password File").

use std::{fs, io, path::Path};

use tokio_postgres::config::Host;

use super::Target;
use crate::Error;

#[derive(Clone, Default)]
pub(super) struct PassFile {
    lines: Vec<[String; 5]>,
}

impl PassFile {
    /// A file that does not exist, or that others may read, is passed over, as libpq does.
    pub(super) fn read(path: &Path) -> Result<Self, Error> {
        let text = match read_private(path) {
            Ok(Some(text)) => text,
            Ok(None) => {
                tracing::warn!(path = %path.display(), "password file is readable by others and is not used: chmod 0600");
                return Ok(Self::default());
            }
            Err(e)
                if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
            {
                return Ok(Self::default());
            }
            Err(e) => return Err(Error::Config(format!("password file {}: {e}", path.display()))),
        };
        Ok(Self::parse(&text))
    }

    pub(super) fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#')).filter_map(fields).collect();
        Self { lines }
    }

    pub(super) fn find(&self, target: &Target, database: &str, user: &str) -> Option<Vec<u8>> {
        let host = match &target.host {
            Host::Tcp(name) => name.clone(),
            // the default socket directories go by the name of localhost
            Host::Unix(dir)
                if dir == Path::new("/tmp") || dir == Path::new("/var/run/postgresql") =>
            {
                "localhost".to_owned()
            }
            Host::Unix(dir) => dir.display().to_string(),
        };
        let port = target.port.to_string();
        let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        let line = self.lines.iter().find(|[h, p, d, u, _]| {
            fits(h, &host) && fits(p, &port) && fits(d, database) && fits(u, user)
        });
        line.map(|[.., password]| password.clone().into_bytes())
    }
}

fn read_private(path: &Path) -> io::Result<Option<String>> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::metadata(path)?;
    if metadata.is_file() && metadata.permissions().mode() & 0o077 != 0 {
        return Ok(None);
    }
    fs::read_to_string(path).map(Some)
}

/// Splits at the first four colons that are not escaped; the rest is the password.
fn fields(line: &str) -> Option<[String; 5]> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        match c {
            ':' if fields.len() < 5 => fields.push(String::new()),
            '\\' => fields.last_mut()?.extend(chars.next()),
            c => fields.last_mut()?.push(c),
        }
    }
    fields.try_into().ok()
}
