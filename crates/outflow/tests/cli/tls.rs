//! TLS to Redis, with an authority of one's own.

use std::fs;
use std::path::PathBuf;

use outflow_sandbox::{Redis, shared_postgres};
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{Process, folder, status, until};
use crate::{outflow, ran};

/// A certificate for 127.0.0.1 that nobody knows, and its key.
fn certificate() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("crt.pem"), folder.path().join("key.pem"));
    fs::write(&certificate, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    (folder, certificate, key)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_is_trusted_where_its_authority_is_named() {
    let server = shared_postgres().await.unwrap();
    let (_files, certificate, key) = certificate();
    let redis = Redis::builder().tls(&certificate, &key).start().await.unwrap();
    let (folder, source, _) = folder(server, &redis, "127.0.0.1:0").await;
    let path = folder.path();
    let (_, report) = status(path);
    let error = report["broker"]["error"].as_str().unwrap();
    assert!(error.contains("certificate"), "{error}");

    let trusted = [("SSL_CERT_FILE", certificate.display().to_string())];
    let _relay = Process::start_as(path, &["relay"], &trusted);
    let _consumer = Process::start_as(path, &["consume"], &trusted);
    let client = server.connect_to(&source).await.unwrap();
    let post = "SELECT ledger.post('j1', 'cash', 'sales', 'c-17', 'EUR', 100)";
    client.execute(post, &[]).await.unwrap();
    until("the projection", path, || {
        let asked = outflow(path).args(["status", "--json"]).envs(trusted.clone()).output();
        let report: Value = ran(&asked.unwrap()).json();
        report["consumer"]["found"]["applied"] == 1
    });
}
