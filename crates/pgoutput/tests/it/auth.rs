//! Passwords, TLS, certificates, channel binding.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf};

use outflow_pgoutput::{Error, ReplicationClient, Retry};
use outflow_sandbox::Postgres;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

use crate::support::options;

/// An authority, a server certificate for `localhost`, a client certificate for the role `certified`.
struct Pki {
    dir: tempfile::TempDir,
}

impl Pki {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // the server runs as another user
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let pki = Self { dir };
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        params.distinguished_name.push(DnType::CommonName, "authority");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        pki.write("ca.pem", &authority.pem());
        for (file, name, alternative) in
            [("server", "localhost", vec!["localhost".to_owned()]), ("client", "certified", vec![])]
        {
            let key = KeyPair::generate().unwrap();
            let mut params = CertificateParams::new(alternative).unwrap();
            params.distinguished_name.push(DnType::CommonName, name);
            let certificate = params.signed_by(&key, &authority).unwrap();
            pki.write(&format!("{file}.pem"), &certificate.pem());
            pki.write(&format!("{file}.key"), &key.serialize_pem());
        }
        pki
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.path(file), text).unwrap();
        fs::set_permissions(self.path(file), fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// `None` for a PostgreSQL that was built without TLS.
    async fn server(&self) -> Option<Postgres> {
        let builder = Postgres::builder()
            .tls(self.path("server.pem"), self.path("server.key"))
            .setting("ssl_ca_file", self.path("ca.pem").display())
            .pg_hba(TLS_HBA);
        match builder.start().await {
            Err(e) if e.to_string().contains("SSL is not supported by this build") => None,
            started => {
                let pg = started.unwrap();
                roles(&pg).await;
                Some(pg)
            }
        }
    }
}

async fn roles(pg: &Postgres) {
    let sql = "SET password_encryption = 'scram-sha-256';
        CREATE ROLE scram LOGIN SUPERUSER PASSWORD 's3crét';
        CREATE ROLE clear LOGIN SUPERUSER PASSWORD 's3crét';
        CREATE ROLE certified LOGIN SUPERUSER;
        CREATE ROLE free LOGIN SUPERUSER;
        SET password_encryption = 'md5';
        CREATE ROLE digest LOGIN SUPERUSER PASSWORD 's3crét'";
    pg.connect().await.unwrap().batch_execute(sql).await.unwrap();
}

const HBA: &str = "host all free 127.0.0.1/32 trust
    host all scram 127.0.0.1/32 scram-sha-256
    host all digest 127.0.0.1/32 md5
    host all clear 127.0.0.1/32 password
    host all certified 127.0.0.1/32 reject";

const TLS_HBA: &str = "hostssl all free 127.0.0.1/32 trust
    hostssl all scram 127.0.0.1/32 scram-sha-256
    hostssl all certified 127.0.0.1/32 cert";

/// Both kinds of connection with the same options.
async fn connects(dsn: &str) -> Result<(), Error> {
    let options = options(dsn);
    let link = ReplicationClient::connect(&options).await;
    let sql = options.connect_sql().await;
    match (link, sql) {
        (Ok(mut link), Ok(sql)) => {
            assert!(link.identify_system().await.is_ok());
            sql.client.simple_query("SELECT 1").await.unwrap();
            Ok(())
        }
        (Err(e), Err(_)) => Err(e),
        (link, sql) => panic!("{dsn}: they differ: {:?} {:?}", link.err(), sql.err()),
    }
}

fn dsn(pg: &Postgres, rest: &str) -> String {
    format!("host=localhost hostaddr=127.0.0.1 port={} dbname=postgres {rest}", pg.port())
}

#[tokio::test]
async fn every_password_method() {
    let pg = Postgres::builder().pg_hba(HBA).start().await.unwrap();
    roles(&pg).await;
    connects(&dsn(&pg, "user=free")).await.unwrap();
    for role in ["scram", "digest", "clear"] {
        connects(&dsn(&pg, &format!("user={role} password=s3crét"))).await.unwrap();
        let error = connects(&dsn(&pg, &format!("user={role} password=wrong"))).await.unwrap_err();
        assert_eq!(error.sqlstate().map(|s| s.code()), Some("28P01"), "{error}");
        assert_eq!(error.retry(), Retry::Fatal);
        assert!(!error.to_string().contains("wrong"), "{error}");
        let error = connects(&dsn(&pg, &format!("user={role}"))).await.unwrap_err();
        assert!(matches!(error, Error::Authentication { .. }), "{error}");
        assert!(error.to_string().contains("PGPASSWORD"), "{error}");
        assert_eq!(error.retry(), Retry::Fatal);
    }
    let error = connects(&dsn(&pg, "user=certified")).await.unwrap_err();
    assert_eq!(error.sqlstate().map(|s| s.code()), Some("28000"), "{error}");
}

#[tokio::test]
async fn channel_binding_needs_tls() {
    let pg = Postgres::builder().pg_hba(HBA).start().await.unwrap();
    roles(&pg).await;
    for role in ["scram", "clear", "digest", "free"] {
        let rest = format!("user={role} password=s3crét channel_binding=require");
        let error = connects(&dsn(&pg, &rest)).await.unwrap_err();
        assert!(error.to_string().contains("channel_binding"), "{role}: {error}");
        assert_eq!(error.retry(), Retry::Fatal, "{role}: {error}");
    }
}

#[tokio::test]
async fn tls_is_verified() {
    let pki = Pki::new();
    let Some(pg) = pki.server().await else { return };
    let root = format!("sslrootcert={}", pki.path("ca.pem").display());
    let good = [
        format!("user=free sslmode=verify-full {root}"),
        format!("user=free sslmode=verify-ca {root}"),
        format!("user=free sslmode=require {root}"),
        format!("user=free sslmode=prefer {root}"),
        format!("user=scram password=s3crét sslmode=verify-full {root}"),
        format!("user=scram password=s3crét sslmode=verify-full channel_binding=require {root}"),
        format!("user=scram password=s3crét sslmode=verify-full channel_binding=disable {root}"),
    ];
    for rest in good {
        connects(&dsn(&pg, &rest)).await.unwrap_or_else(|e| panic!("{rest}: {e}"));
    }
    // the session is really encrypted
    let options = options(&dsn(&pg, &format!("user=free sslmode=verify-full {root}")));
    let mut link = ReplicationClient::connect(&options).await.unwrap();
    let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    assert_eq!(link.simple_query(sql).await.unwrap()[0].get(0), Some("t"));
}

#[tokio::test]
async fn a_certificate_that_does_not_fit_is_refused() {
    let pki = Pki::new();
    let Some(pg) = pki.server().await else { return };
    let root = format!("sslrootcert={}", pki.path("ca.pem").display());
    let other = Pki::new();
    let other_root = format!("sslrootcert={}", other.path("ca.pem").display());
    let wrong_name = |rest: &str| {
        format!(
            "host=db.example hostaddr=127.0.0.1 port={} dbname=postgres user=free {rest}",
            pg.port()
        )
    };
    let bad = [
        // signed by an authority that nobody knows
        dsn(&pg, "user=free sslmode=require"),
        dsn(&pg, &format!("user=free sslmode=verify-full {other_root}")),
        dsn(&pg, &format!("user=free sslmode=verify-ca {other_root}")),
        dsn(&pg, &format!("user=free sslmode=prefer {other_root}")),
        // for another name
        wrong_name(&format!("sslmode=verify-full {root}")),
        wrong_name(&format!("sslmode=prefer {root}")),
    ];
    for dsn in bad {
        let error = connects(&dsn).await.unwrap_err();
        assert!(matches!(error, Error::Tls { .. }), "{dsn}: {error}");
        assert_eq!(error.retry(), Retry::Fatal, "{dsn}: {error}");
        assert!(error.to_string().contains("sslrootcert"), "{error}");
    }
    // verify-ca does not look at the name
    connects(&wrong_name(&format!("sslmode=verify-ca {root}"))).await.unwrap();
}

#[tokio::test]
async fn client_certificates() {
    let pki = Pki::new();
    let Some(pg) = pki.server().await else { return };
    let root =
        format!("user=certified sslmode=verify-full sslrootcert={}", pki.path("ca.pem").display());
    let pair = |name: &str| {
        let (cert, key) = (pki.path(&format!("{name}.pem")), pki.path(&format!("{name}.key")));
        format!("{root} sslcert={} sslkey={}", cert.display(), key.display())
    };
    connects(&dsn(&pg, &pair("client"))).await.unwrap();
    // a certificate for another role
    let error = connects(&dsn(&pg, &pair("server"))).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Fatal, "{error}");
    let error = connects(&dsn(&pg, &root)).await.unwrap_err();
    assert_eq!(error.retry(), Retry::Fatal, "{error}");
    let error = connects(&dsn(&pg, &format!("{root} sslcert=/nowhere sslkey=/nowhere"))).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "{error}");
}

#[tokio::test]
async fn a_server_without_tls() {
    let pg = Postgres::builder().start().await.unwrap();
    connects(&dsn(&pg, "user=postgres sslmode=prefer")).await.unwrap();
    let options = options(&dsn(&pg, "user=postgres sslmode=require"));
    let error = ReplicationClient::connect(&options).await.err().unwrap();
    assert!(matches!(error, Error::TlsNotOffered { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
}
