use tokio_postgres::config::{ChannelBinding, SslNegotiation, TargetSessionAttrs};

use super::*;

/// Options from a connection string and these variables, and nothing of the process.
fn parse(dsn: &str, env: &[(&str, &str)]) -> Result<ConnectOptions, Error> {
    let lookup =
        |name: &str| env.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    ConnectOptions::parse_with(dsn, &lookup)
}

fn text(dsn: &str, env: &[(&str, &str)]) -> String {
    parse(dsn, env).unwrap().redacted()
}

fn error(dsn: &str, env: &[(&str, &str)]) -> String {
    parse(dsn, env).unwrap_err().to_string()
}

#[test]
fn urls_and_keywords_say_the_same() {
    let url = "postgresql://me:se%40cret@db.example:6432/shop?application_name=x&sslmode=verify-ca&sslrootcert=%2Fca%20s.pem";
    let words = "host=db.example port = 6432 user=me password='se@cret' dbname='shop' application_name=x \
                 sslmode=verify-ca sslrootcert='/ca s.pem'";
    for dsn in [url, words] {
        let options = parse(dsn, &[]).unwrap();
        assert_eq!(
            options.redacted(),
            "postgresql://me@db.example:6432/shop?sslmode=verify-ca&application_name=x"
        );
        assert_eq!(options.root_cert(), &RootCert::File("/ca s.pem".into()));
        let target = &options.targets().unwrap()[0];
        assert_eq!(options.password_for(target).as_deref(), Some(&b"se@cret"[..]));
    }
}

#[test]
fn passwords_never_show() {
    let secret = "hunter2";
    let good = [
        format!("postgres://u:{secret}@h/d"),
        format!("host=h user=u password={secret}"),
        format!("host=h user=u password='it''s {secret}'").replace("''", "\\'"),
    ];
    for dsn in good {
        let options = parse(&dsn, &[("PGPASSWORD", secret)]).unwrap();
        assert!(
            !format!("{options} {options:?} {:?}", options.as_tokio_postgres()).contains(secret)
        );
    }
    for dsn in [
        format!("host=h password=a {secret}"),
        format!("host=h user=u password='{secret}"),
        format!("postgres://u:{secret}@h:port/d"),
        format!("postgres://u:{secret}@h/d?nonsense=1"),
        format!("host=h user=u password={secret} nonsense=1"),
        format!("host=h user=u password={secret} sslmode=maybe"),
        format!("postgres://u:{secret}@h/d?sslcert=%zz"),
        format!("postgres://u:p@{secret}@h/d"),
    ] {
        let error = error(&dsn, &[]);
        assert!(!error.contains(secret), "{error}");
    }
}

#[test]
fn the_environment_fills_what_is_absent_and_nothing_else() {
    let env = [
        ("PGHOST", "a,b"),
        ("PGPORT", "1111,2222"),
        ("PGUSER", "me"),
        ("PGPASSWORD", "pw"),
        ("PGDATABASE", "shop"),
        ("PGAPPNAME", "app"),
        ("PGSSLMODE", "verify-full"),
        ("PGOPTIONS", "-c statement_timeout=0"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGCHANNELBINDING", "require"),
        ("PGSSLNEGOTIATION", "direct"),
        ("PGSSLCERT", ""),
    ];
    let options = parse("", &env).unwrap();
    assert_eq!(
        options.redacted(),
        "postgresql://me@a:1111,b:2222/shop?sslmode=verify-full&application_name=app"
    );
    assert_eq!(options.connect_timeout(), Duration::from_secs(3));
    let config = options.as_tokio_postgres();
    assert_eq!(config.get_options(), Some("-c statement_timeout=0"));
    assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
    assert_eq!(config.get_ssl_negotiation(), SslNegotiation::Direct);

    let dsn = "postgres://you@c:3333/other?sslmode=disable&application_name=mine&connect_timeout=7";
    let options = parse(dsn, &env).unwrap();
    assert_eq!(
        options.redacted(),
        "postgresql://you@c:3333/other?sslmode=disable&application_name=mine"
    );
    assert_eq!(options.connect_timeout(), Duration::from_secs(7));
}

#[test]
fn options_of_tokio_postgres_are_taken_as_they_are() {
    let from = |dsn: &str| {
        let config: tokio_postgres::Config = dsn.parse().unwrap();
        ConnectOptions::try_from(config)
    };
    let options = from("host=a,b port=1,2 user=me password=pw dbname=d sslmode=require").unwrap();
    assert_eq!(options.redacted(), "postgresql://me@a:1,b:2/d?sslmode=verify-full");
    let target = &options.targets().unwrap()[0];
    assert_eq!(options.password_for(target).as_deref(), Some(&b"pw"[..]));
    let options = from("user=me").unwrap();
    assert_eq!(options.redacted(), "postgresql://me@localhost:5432/me?sslmode=disable");
    assert!(from("host=a").unwrap_err().to_string().contains("no user"));
}

#[test]
fn defaults() {
    let options = parse("", &[("USER", "me")]).unwrap();
    assert_eq!(options.redacted(), "postgresql://me@localhost:5432/me?sslmode=disable");
    assert_eq!(options.connect_timeout(), CONNECT_TIMEOUT);
    assert!(error("host=h", &[]).contains("PGUSER"));
    let mut options = parse("host=h user=u", &[]).unwrap();
    options.default_application_name("outflow").set_database("d");
    options.default_application_name("again");
    assert_eq!(
        options.redacted(),
        "postgresql://u@h:5432/d?sslmode=prefer&application_name=outflow"
    );
}

#[test]
fn tls_modes() {
    let mode = |dsn: &str| {
        let options = parse(dsn, &[]).unwrap();
        options.ssl_mode_for(&options.targets().unwrap()[0])
    };
    assert_eq!(mode("host=db user=u"), SslMode::Prefer);
    assert_eq!(mode("host=localhost user=u"), SslMode::Disable);
    assert_eq!(mode("host=127.0.0.1 user=u"), SslMode::Disable);
    assert_eq!(mode("host=db hostaddr=::1 user=u"), SslMode::Disable);
    assert_eq!(mode("host=/run/pg user=u sslmode=verify-full"), SslMode::Disable);
    assert_eq!(mode("host=localhost user=u sslmode=require"), SslMode::VerifyFull);
    assert_eq!(mode("host=db user=u sslmode=require sslrootcert=/ca"), SslMode::VerifyCa);
    assert_eq!(mode("host=db user=u sslmode=require sslrootcert=system"), SslMode::VerifyFull);
    assert_eq!(mode("host=db user=u sslmode=verify-full sslrootcert=/ca"), SslMode::VerifyFull);
    assert_eq!(mode("host=db user=u sslmode=disable"), SslMode::Disable);
    let text = error("host=db user=u sslmode=allow", &[]);
    assert!(text.contains("sslmode=allow") && text.contains("verify-full"), "{text}");
    assert!(error("host=db user=u sslcert=/c", &[]).contains("sslkey"));
}

#[test]
fn hosts_addresses_and_ports_are_paired() {
    let targets = |dsn: &str| {
        let options = parse(dsn, &[]).unwrap();
        options.targets().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(targets("host=a,b user=u"), ["a:5432", "b:5432"]);
    assert_eq!(targets("host=a,b port=1 user=u"), ["a:1", "b:1"]);
    assert_eq!(targets("host=a,b port=1,2 user=u"), ["a:1", "b:2"]);
    assert_eq!(targets("host=a hostaddr=10.0.0.1 user=u"), ["a:5432 (10.0.0.1)"]);
    assert_eq!(targets("hostaddr=10.0.0.1,::1 user=u"), ["10.0.0.1:5432", "::1:5432"]);
    assert_eq!(targets("host=/run/pg port=9 user=u"), ["/run/pg/.s.PGSQL.9"]);
    assert_eq!(targets("postgres://u@a:1,b:2/d"), ["a:1", "b:2"]);
    assert_eq!(targets("postgres:///d?user=u&host=/run/pg"), ["/run/pg/.s.PGSQL.5432"]);
    assert!(error("host=a,b hostaddr=10.0.0.1 user=u", &[]).contains("hostaddr"));
    assert!(error("host=a,b,c port=1,2 user=u", &[]).contains("port"));
}

#[test]
fn bad_values_are_named() {
    assert!(error("host=h user=u nonsense=1", &[]).contains("nonsense"));
    assert!(error("postgres://u@h/d?nonsense=1", &[]).contains("nonsense"));
    assert!(error("host=h user=u connect_timeout=soon", &[]).contains("connect_timeout"));
    assert!(error("user=u", &[("PGPORT", "five")]).contains("PGPORT"));
    assert!(error("user=u", &[("PGHOSTADDR", "here")]).contains("PGHOSTADDR"));
    assert!(error("user=u", &[("PGCONNECT_TIMEOUT", "soon")]).contains("PGCONNECT_TIMEOUT"));
    assert!(error("user=u", &[("PGTARGETSESSIONATTRS", "best")]).contains("PGTARGETSESSIONATTRS"));
    assert!(error("user=u", &[("PGCHANNELBINDING", "x")]).contains("PGCHANNELBINDING"));
    assert!(error("user=u =1", &[]).contains("keyword"));
    assert!(error("host=h user='u", &[]).contains("user"));
}

#[test]
fn password_files() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(".pgpass");
    std::fs::write(
        &path,
        "# comment\ndb:5432:shop:me:first\n*:*:*:esc\\:aped:a\\\\b:c\nlocalhost:*:*:me:socket\nbroken line\n",
    )
    .unwrap();
    let chmod = |mode| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    chmod(0o600);
    let home = [("HOME", dir.path().to_str().unwrap())];
    let password = |dsn: &str| {
        let options = parse(dsn, &home).unwrap();
        let password = options.password_for(&options.targets().unwrap()[0]);
        password.map(|p| String::from_utf8(p).unwrap())
    };
    assert_eq!(password("host=db user=me dbname=shop").as_deref(), Some("first"));
    assert_eq!(password("host=db user=me dbname=shop password=own").as_deref(), Some("own"));
    assert_eq!(password("host=other user=me dbname=shop"), None);
    assert_eq!(password("host=x user='esc:aped'").as_deref(), Some("a\\b:c"));
    assert_eq!(password("host=/tmp user=me").as_deref(), Some("socket"));
    chmod(0o644);
    assert_eq!(password("host=db user=me dbname=shop"), None);
    chmod(0o600);
    let dsn = format!("host=db user=me dbname=shop passfile={}", path.display());
    let options = parse(&dsn, &[]).unwrap();
    assert!(options.password_for(&options.targets().unwrap()[0]).is_some());
}

#[test]
fn redacted_takes_only_what_is_there() {
    assert_eq!(
        text("host=/run/pg,db port=1,2 user=u", &[]),
        "postgresql://u@/run/pg:1,db:2/u?sslmode=disable"
    );
}
