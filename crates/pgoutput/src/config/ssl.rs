//! How far TLS is asked for, and who is trusted.

use std::{fmt, path::PathBuf};

use crate::Error;

/// How far TLS is asked for. There is no mode that encrypts without verifying: whoever can read the
/// traffic can also stand in the middle of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SslMode {
    /// `disable`: no TLS.
    Disable,
    /// `prefer`: TLS where the server offers it, and then verified as by `verify-full`.
    Prefer,
    /// `verify-ca`: TLS with a certificate of a trusted authority, for whatever name. In libpq
    /// `require` with an `sslrootcert` means the same, and so it does here.
    VerifyCa,
    /// `verify-full`: TLS with a certificate of a trusted authority for this host name. `require` without
    /// an `sslrootcert` means this.
    VerifyFull,
}

impl fmt::Display for SslMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disable => "disable",
            Self::Prefer => "prefer",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        })
    }
}

/// Which authorities are trusted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RootCert {
    System,
    File(PathBuf),
}

pub(super) fn ssl_mode(mode: &str, root: Option<&RootCert>) -> Result<SslMode, Error> {
    Ok(match mode {
        "disable" => SslMode::Disable,
        "prefer" => SslMode::Prefer,
        "require" if matches!(root, Some(RootCert::File(_))) => SslMode::VerifyCa,
        "require" | "verify-full" => SslMode::VerifyFull,
        "verify-ca" => SslMode::VerifyCa,
        other => {
            return Err(Error::Config(format!(
                "sslmode={other}: allowed are disable, prefer, require, verify-ca, verify-full"
            )));
        }
    })
}
