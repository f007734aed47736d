//! The proxy's faults, seen from a client of an echo server.

use std::time::Duration;

use outflow_sandbox::Proxy;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Long enough for loopback, short enough to wait for nothing.
const A_MOMENT: Duration = Duration::from_millis(200);
const SOON: Duration = Duration::from_secs(10);

/// An echo server; tells what it has received.
async fn echo() -> (std::net::SocketAddr, mpsc::UnboundedReceiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let sender = sender.clone();
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    let _ = sender.send(buffer[..count].to_vec());
                    let _ = stream.write_all(&buffer[..count]).await;
                }
            });
        }
    });
    (address, received)
}

async fn says(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}

async fn hears(stream: &mut TcpStream, text: &str) {
    let mut buffer = vec![0; text.len()];
    timeout(SOON, stream.read_exact(&mut buffer)).await.unwrap().unwrap();
    assert_eq!(buffer, text.as_bytes());
}

async fn hears_nothing(stream: &mut TcpStream) {
    assert!(timeout(A_MOMENT, stream.read_u8()).await.is_err());
}

async fn is_closed(stream: &mut TcpStream) {
    assert!(timeout(SOON, stream.read_u8()).await.unwrap().is_err());
}

#[tokio::test]
async fn forwards_and_counts() {
    let (address, _received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut client, "hello").await;
    hears(&mut client, "hello").await;
    assert_eq!((proxy.connections(), proxy.request_bytes(), proxy.reply_bytes()), (1, 5, 5));
    drop(proxy);
    is_closed(&mut client).await;
}

#[tokio::test]
async fn a_pause_holds_bytes_and_loses_none() {
    let (address, mut received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut client, "a").await;
    hears(&mut client, "a").await;
    received.recv().await.unwrap();
    proxy.pause();
    says(&mut client, "b").await;
    hears_nothing(&mut client).await;
    assert!(received.try_recv().is_err());
    let mut late = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut late, "c").await;
    hears_nothing(&mut late).await;
    proxy.resume();
    hears(&mut client, "b").await;
    hears(&mut late, "c").await;
}

#[tokio::test]
async fn swallowed_replies_leave_the_outcome_unknown() {
    let (address, mut received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.swallow_replies();
    says(&mut client, "a").await;
    assert_eq!(timeout(SOON, received.recv()).await.unwrap().unwrap(), b"a");
    hears_nothing(&mut client).await;
    proxy.cut();
    is_closed(&mut client).await;
    proxy.resume();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut client, "b").await;
    hears(&mut client, "b").await;
}

#[tokio::test]
async fn withheld_replies_arrive_on_resume() {
    let (address, _received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.swallow_replies();
    says(&mut client, "a").await;
    hears_nothing(&mut client).await;
    proxy.resume();
    hears(&mut client, "a").await;
}

#[tokio::test]
async fn refuses_and_listens_again_on_the_same_port() {
    let (address, _received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut client, "a").await;
    hears(&mut client, "a").await;
    proxy.refuse().await;
    is_closed(&mut client).await;
    assert!(TcpStream::connect(proxy.address()).await.is_err());
    proxy.resume();
    let mut client = timeout(SOON, async {
        loop {
            match TcpStream::connect(proxy.address()).await {
                Ok(stream) => return stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
    .unwrap();
    says(&mut client, "b").await;
    hears(&mut client, "b").await;
}

#[tokio::test]
async fn a_target_that_is_down_closes_the_connection() {
    let proxy = Proxy::to("127.0.0.1:1").start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    is_closed(&mut client).await;
}

#[tokio::test]
async fn a_connection_is_cut_in_the_middle_of_a_request_and_the_next_one_passes() {
    let (address, mut received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut client, "hello").await;
    hears(&mut client, "hello").await;
    proxy.cut_after(3);
    says(&mut client, "hello").await;
    let _ = timeout(SOON, client.read(&mut [0; 16])).await.unwrap();
    let mut next = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut next, "again").await;
    hears(&mut next, "again").await;
    drop((client, next, proxy));
    let mut all = Vec::new();
    while let Ok(Some(piece)) = timeout(A_MOMENT, received.recv()).await {
        all.push(String::from_utf8(piece).unwrap());
    }
    assert_eq!(all, ["hello", "hel", "again"]);
}

#[tokio::test]
async fn a_slow_way_is_slow_and_a_new_target_is_for_new_connections() {
    let (address, _received) = echo().await;
    let proxy = Proxy::to(address).start().await.unwrap();
    let mut client = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.delay(A_MOMENT);
    let since = std::time::Instant::now();
    says(&mut client, "hello").await;
    hears(&mut client, "hello").await;
    assert!(since.elapsed() >= A_MOMENT * 2, "{:?}", since.elapsed());
    proxy.delay(Duration::ZERO);
    proxy.throttle(50);
    let since = std::time::Instant::now();
    says(&mut client, "0123456789").await;
    hears(&mut client, "0123456789").await;
    assert!(since.elapsed() >= A_MOMENT * 2, "{:?}", since.elapsed());
    proxy.throttle(0);

    let (other, mut there) = echo().await;
    proxy.point_at(other);
    says(&mut client, "old").await;
    hears(&mut client, "old").await;
    assert!(there.try_recv().is_err());
    let mut moved = TcpStream::connect(proxy.address()).await.unwrap();
    says(&mut moved, "new").await;
    hears(&mut moved, "new").await;
    assert_eq!(there.recv().await.unwrap(), b"new");
}
