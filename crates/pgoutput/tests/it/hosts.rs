//! Where to connect: several hosts, sockets, standbys, poolers, ports that are something else.

use std::time::{Duration, Instant};

use outflow_pgoutput::{
    CreateSlotOptions, Error, FeedbackOptions, ReplicationClient, Retry, StartOptions,
};
use outflow_sandbox::{Postgres, Shutdown};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use crate::support::{Bench, PUBLICATION, Reader, SLOT, in_time, options};

/// A port that nobody listens on.
async fn closed_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port()
}

/// A server that gives this answer to whoever connects, and its port.
async fn answering(answer: &'static [u8]) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut held = Vec::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut startup = [0; 1024];
            let _ = socket.read(&mut startup).await;
            let _ = socket.write_all(answer).await;
            held.push(socket);
        }
    });
    port
}

#[tokio::test]
async fn the_unix_socket() {
    let bench = Bench::start().await;
    let options = options(&bench.pg.unix_url());
    let sql = options.connect_sql().await.unwrap();
    sql.client.simple_query("SELECT 1").await.unwrap();
    let client = ReplicationClient::connect(&options).await.unwrap();
    assert!(client.host().ends_with(&format!(".s.PGSQL.{}", bench.pg.port())));
    let start = StartOptions::new(SLOT, PUBLICATION);
    let stream = client.start_replication(start, FeedbackOptions::default()).await.unwrap();
    stream.set_appetite(outflow_pgoutput::Appetite::Bulk);
    let mut reader = Reader::new(stream);
    bench.emit(1).await;
    assert_eq!(reader.confirm_until(1).await, [1]);
    reader.stop().await;
}

#[tokio::test]
async fn several_hosts_are_tried_in_order() {
    let pg = Postgres::builder().start().await.unwrap();
    let closed = closed_port().await;
    let dsn = format!(
        "host=no-such-host.invalid,127.0.0.1,/nowhere,127.0.0.1 port=1,{closed},2,{} user=postgres",
        pg.port()
    );
    let client = ReplicationClient::connect(&options(&dsn)).await.unwrap();
    assert_eq!(client.host(), format!("127.0.0.1:{}", pg.port()));
    options(&dsn).connect_sql().await.unwrap();

    let dsn = format!("host=127.0.0.1 port={closed} user=postgres");
    let error = ReplicationClient::connect(&options(&dsn)).await.err().unwrap();
    assert_eq!(error.retry(), Retry::Transient);
    assert!(error.to_string().contains(&closed.to_string()), "{error}");
    let error = options(&dsn).connect_sql().await.unwrap_err();
    assert_eq!(error.retry(), Retry::Transient, "{error}");
}

#[tokio::test]
async fn a_host_that_never_answers_costs_no_more_than_connect_timeout() {
    let pg = Postgres::builder().start().await.unwrap();
    let silent = answering(b"").await;
    let hosts = format!("host=127.0.0.1,127.0.0.1 port={silent},{}", pg.port());
    let since = Instant::now();
    let dsn = format!("{hosts} user=postgres connect_timeout=1");
    ReplicationClient::connect(&options(&dsn)).await.unwrap();
    options(&dsn).connect_sql().await.unwrap();
    assert!(since.elapsed() < Duration::from_secs(15), "{:?}", since.elapsed());
    let dsn = format!("host=127.0.0.1 port={silent} user=postgres connect_timeout=1");
    let error = ReplicationClient::connect(&options(&dsn)).await.err().unwrap();
    assert!(matches!(error, Error::ConnectTimeout { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Transient);
}

#[tokio::test]
async fn a_host_that_falls_silent_behind_its_greeting_is_given_up_too() {
    // authenticated, ready for a query, and no answer to it
    let silent = answering(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await;
    let dsn = format!(
        "host=127.0.0.1 port={silent} user=postgres connect_timeout=1 target_session_attrs=read-write"
    );
    let options = options(&dsn);
    let connecting = ReplicationClient::connect(&options);
    let error = in_time("it is given up", connecting).await.err().unwrap();
    assert!(matches!(error, Error::ConnectTimeout { .. }), "{error}");
}

/// Turns a server into a standby that follows nobody.
async fn demote(pg: &Postgres) {
    pg.stop(Shutdown::Fast, Duration::from_secs(20)).await.unwrap();
    std::fs::write(pg.data_dir().join("standby.signal"), "").unwrap();
    pg.start_again().await.unwrap();
}

#[tokio::test]
async fn c43_a_standby_is_named_and_worth_another_try() {
    let bench = Bench::start().await;
    demote(&bench.pg).await;
    let mut client = bench.client().await;
    // from 16 on a standby can have slots, once the primary gives the word
    if bench.pg.version() < 16 {
        let error = client.create_slot("x", CreateSlotOptions::default()).await.unwrap_err();
        assert!(matches!(error, Error::Standby { .. }), "{error}");
        assert_eq!(error.retry(), Retry::Transient);
    }
    drop(client);
    let start = StartOptions::new("nowhere", PUBLICATION);
    let error = bench.client().await.start_replication(start, FeedbackOptions::default()).await;
    let error = error.unwrap_err();
    assert!(matches!(error, Error::Standby { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Transient);
}

#[tokio::test]
async fn c43_target_session_attrs_passes_over_a_standby() {
    let standby = Postgres::builder().start().await.unwrap();
    let primary = Postgres::builder().start().await.unwrap();
    demote(&standby).await;
    let dsn = |attrs: &str| {
        format!(
            "host=127.0.0.1,127.0.0.1 port={},{} user=postgres target_session_attrs={attrs}",
            standby.port(),
            primary.port()
        )
    };
    for (attrs, port) in [("read-write", primary.port()), ("any", standby.port())] {
        let client = ReplicationClient::connect(&options(&dsn(attrs))).await.unwrap();
        assert_eq!(client.host(), format!("127.0.0.1:{port}"), "{attrs}");
        let sql = options(&dsn(attrs)).connect_sql().await.unwrap();
        let row = sql.client.query_one("SELECT inet_server_port()", &[]).await.unwrap();
        assert_eq!(row.get::<_, i32>(0), i32::from(port), "{attrs}");
    }
    let dsn = format!(
        "host=127.0.0.1 port={} user=postgres target_session_attrs=read-write",
        standby.port()
    );
    let error = ReplicationClient::connect(&options(&dsn)).await.err().unwrap();
    assert!(matches!(error, Error::SessionAttrs { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Transient);
}

#[tokio::test]
async fn c48_a_pooler_is_recognised() {
    // pgbouncer before 1.23
    let port = answering(
        b"E\0\0\0\x4fSFATAL\0VFATAL\0C08P01\0Munsupported startup parameter: replication=database\0\0",
    )
    .await;
    let options = options(&format!("host=127.0.0.1 port={port} user=postgres"));
    let error = ReplicationClient::connect(&options).await.err().unwrap();
    assert!(matches!(error, Error::Pooler { .. }), "{error}");
    assert_eq!(error.retry(), Retry::Fatal);
    assert!(error.to_string().contains("directly"), "{error}");
}

#[tokio::test]
async fn a_port_that_is_no_postgresql() {
    for answer in
        [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"-ERR unknown command\r\n", b"S\0\0\0\0"]
    {
        let port = answering(answer).await;
        let dsn = format!("host=127.0.0.1 port={port} user=postgres connect_timeout=1");
        let error = ReplicationClient::connect(&options(&dsn)).await.err().unwrap();
        let expected = matches!(
            error,
            Error::Protocol(_) | Error::MessageTooLarge { .. } | Error::ConnectTimeout { .. }
        );
        assert!(expected, "{error:?}");
    }
}
