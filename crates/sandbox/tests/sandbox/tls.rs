//! A certificate for 127.0.0.1.

use std::fs;
use std::path::PathBuf;

/// A self-signed certificate and its key, as files.
pub(crate) struct Files {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    _folder: tempfile::TempDir,
}

impl Files {
    pub(crate) fn generate() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let (certificate, key) = (folder.path().join("crt.pem"), folder.path().join("key.pem"));
        fs::write(&certificate, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        Self { certificate, key, _folder: folder }
    }
}
