//! The link against a server of our own, over a socket pair: what a real server does too rarely.

use std::{collections::HashMap, time::Duration};

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    task::JoinHandle,
};

use super::*;
use crate::{Frame, wire::Wire};

struct Server {
    socket: UnixStream,
    seen: Vec<u8>,
}

struct Caller {
    chunks: mpsc::Receiver<Chunk>,
    shared: Arc<Shared>,
    task: JoinHandle<Result<Lsn, Error>>,
}

fn start(options: FeedbackOptions) -> (Server, Caller) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let session = Session {
        wire: Wire::new(Socket::Unix(ours)),
        host: "test".into(),
        process_id: 1,
        parameters: HashMap::new(),
    };
    // nobody listens there: the sentinel finds nothing
    let connect = ConnectOptions::parse_with("host=/nowhere user=u", &|_| None).unwrap();
    let (sender, chunks) = mpsc::channel(options.chunks);
    let shared = Arc::new(Shared::default());
    let link = Link::new(session, connect, 0.into(), options, sender, Arc::clone(&shared)).unwrap();
    let task = tokio::spawn(link.run());
    (Server { socket: theirs, seen: Vec::new() }, Caller { chunks, shared, task })
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &len.to_be_bytes(), body].concat()
}

fn xlog(body: &[u8]) -> Vec<u8> {
    let head = [&b"w"[..], &7_u64.to_be_bytes(), &7_u64.to_be_bytes(), &[0; 8]].concat();
    message(b'd', &[&head, body].concat())
}

fn begin() -> Vec<u8> {
    xlog(&[&b"B"[..], &[0; 20]].concat())
}

fn commit(end: u64) -> Vec<u8> {
    xlog(&[&b"C\0"[..], &[0; 8], &end.to_be_bytes(), &[0; 8]].concat())
}

fn keepalive(end: u64, reply: bool) -> Vec<u8> {
    message(b'd', &[&b"k"[..], &end.to_be_bytes(), &[0; 8], &[u8::from(reply)]].concat())
}

fn error_message(code: &str, text: &str) -> Vec<u8> {
    let body = format!("SFATAL\0VFATAL\0C{code}\0M{text}\0\0");
    message(b'E', body.as_bytes())
}

/// A status update of the client.
#[derive(Debug, PartialEq)]
struct Update {
    write: u64,
    flush: u64,
    reply: bool,
}

impl Server {
    async fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).await.unwrap();
    }

    /// The next whole message of the client: tag and body.
    async fn next(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Ok(Some((tag, total))) = wire::header(&self.seen) {
                let total = usize::try_from(total).unwrap();
                if self.seen.len() >= total {
                    let message: Vec<u8> = self.seen.drain(..total).collect();
                    return Some((tag, message[5..].to_vec()));
                }
            }
            if self.socket.read_buf(&mut self.seen).await.ok()? == 0 {
                return None;
            }
        }
    }

    async fn update(&mut self) -> Update {
        let (tag, body) = self.next().await.unwrap();
        assert_eq!((tag, body[0], body.len()), (b'd', b'r', 34));
        let u64_at = |at: usize| u64::from_be_bytes(body[at..at + 8].try_into().unwrap());
        assert_eq!(u64_at(9), u64_at(17), "apply follows flush");
        Update { write: u64_at(1), flush: u64_at(9), reply: body[33] == 1 }
    }
}

fn frames_of(chunks: &[Chunk]) -> Vec<Vec<u8>> {
    let bodies = chunks.iter().flat_map(|chunk| {
        chunk.frames().map(|frame| match frame {
            Frame::XLogData { body, .. } => body.to_vec(),
            Frame::Keepalive { wal_end, .. } => u64::from(wal_end).to_be_bytes().to_vec(),
        })
    });
    bodies.collect()
}

#[tokio::test]
async fn asks_are_answered_and_frames_passed_on() {
    let (mut server, mut caller) = start(FeedbackOptions::default());
    server.send(&[begin(), xlog(b"I..."), commit(90), keepalive(90, true)].concat()).await;
    assert_eq!(server.update().await, Update { write: 90, flush: 0, reply: false });
    let chunk = caller.chunks.recv().await.unwrap();
    assert_eq!(chunk.frames().count(), 4);
    caller.shared.confirmed.store(90, Ordering::Release);
    server.send(&keepalive(120, true)).await;
    assert_eq!(server.update().await, Update { write: 120, flush: 120, reply: false });
    assert_eq!(caller.shared.received.load(Ordering::Acquire), 120);
    assert_eq!(caller.shared.flushed.load(Ordering::Acquire), 120);
}

#[tokio::test]
async fn c28_a_caller_that_stands_still_bounds_memory_and_is_answered_for() {
    let options = FeedbackOptions {
        read_buffer: 32 << 10,
        chunks: 2,
        status_interval: Duration::from_millis(50),
        ..FeedbackOptions::default()
    };
    let (server, mut caller) = start(options);
    let (mut read, mut write) = server.socket.into_split();
    let sent = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let writer = tokio::spawn(async move {
        let frame = xlog(&[b'I'; 1000]);
        for _ in 0..20_000 {
            write.write_all(&frame).await.unwrap();
            counter.fetch_add(frame.len(), Ordering::Relaxed);
        }
    });
    // status updates come on time although nothing is read
    let mut updates = vec![0; 39 * 5];
    read.read_exact(&mut updates).await.unwrap();
    // 20 MB are on offer; the kernel's buffers and ours are full long before
    assert!(sent.load(Ordering::Relaxed) < 4 << 20, "{}", sent.load(Ordering::Relaxed));
    assert!(!writer.is_finished());
    let mut frames = 0;
    while frames < 20_000 {
        let chunk = caller.chunks.recv().await.unwrap();
        assert!(chunk.len() <= 34 << 10, "{}", chunk.len());
        frames += chunk.frames().count();
    }
    assert_eq!(frames, 20_000);
}

#[tokio::test]
async fn what_came_before_an_error_is_delivered_first() {
    let options = FeedbackOptions { chunks: 1, read_buffer: 4096, ..FeedbackOptions::default() };
    let (mut server, mut caller) = start(options);
    for end in 1..=50 {
        server.send(&[begin(), xlog(&[b'I'; 500]), commit(end)].concat()).await;
    }
    server.send(&error_message("57P01", "going down")).await;
    drop(server);
    let mut frames = 0;
    while let Some(chunk) = caller.chunks.recv().await {
        frames += chunk.frames().count();
    }
    assert_eq!(frames, 150);
    let error = caller.task.await.unwrap().unwrap_err();
    assert_eq!(error.sqlstate().map(|s| s.code()), Some("57P01"), "{error}");
}

#[tokio::test]
async fn a_frame_above_max_message_is_named() {
    let options = FeedbackOptions { max_message: 10_000, ..FeedbackOptions::default() };
    let (mut server, mut caller) = start(options);
    server.send(&[xlog(&[b'I'; 9_000]), xlog(&[b'I'; 11_000])].concat()).await;
    assert_eq!(caller.chunks.recv().await.unwrap().frames().count(), 1);
    assert!(caller.chunks.recv().await.is_none());
    let error = caller.task.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::MessageTooLarge { len: 11_030, max: 10_000 }), "{error}");
}

#[tokio::test]
async fn c65_a_frame_far_above_the_read_buffer_arrives_whole() {
    let options = FeedbackOptions { read_buffer: 4096, ..FeedbackOptions::default() };
    let (mut server, mut caller) = start(options);
    let big: Vec<u8> = (0..20_000_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let frame = xlog(&big);
    let send = tokio::spawn(async move {
        server.send(&frame).await;
        server
    });
    let chunk = caller.chunks.recv().await.unwrap();
    assert_eq!(frames_of(&[chunk]), [big]);
    send.await.unwrap();
}

#[tokio::test]
async fn garbage_ends_the_stream_with_a_word() {
    for (bytes, word) in [
        (message(b'?', b""), "'?'"),
        (message(b'd', b"z"), "'z'"),
        (message(b'd', b"w123"), "too early"),
        (vec![b'd', 0, 0, 0, 1], "length 1"),
        (message(b'd', &[keepalive(1, true), vec![0]].concat()[5..]), "too many"),
        (xlog(b"C"), "ends in the middle"),
    ] {
        let (mut server, caller) = start(FeedbackOptions::default());
        server.send(&bytes).await;
        let error = caller.task.await.unwrap().unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.retry(), crate::Retry::Fatal);
    }
}

#[tokio::test]
async fn c44_silence_ends_the_link() {
    let peer_timeout = Duration::from_millis(300);
    let (mut server, caller) =
        start(FeedbackOptions { peer_timeout, ..FeedbackOptions::default() });
    assert!(server.update().await.reply);
    let error = caller.task.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { .. }), "{error}");
}

#[tokio::test]
async fn c35_asks_without_end_release_the_link() {
    let (mut server, mut caller) = start(FeedbackOptions::default());
    server.send(&[begin(), commit(90), keepalive(120, true)].concat()).await;
    let mut answers = 0;
    let last = loop {
        let (tag, body) = server.next().await.unwrap();
        if tag != b'd' {
            break tag;
        }
        assert_eq!(body[9..17], [0; 8], "a false confirmation");
        answers += 1;
        // the link may be gone by now
        let _ = server.socket.write_all(&keepalive(120, true)).await;
    };
    assert_eq!(last, b'c');
    assert!((3..20).contains(&answers), "{answers}");
    assert_eq!(server.next().await.map(|(tag, _)| tag), Some(b'X'));
    assert!(caller.chunks.recv().await.is_some());
    let error = caller.task.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::ServerShuttingDown(_)), "{error}");
    assert_eq!(error.retry(), crate::Retry::Transient);
}

#[tokio::test]
async fn c35_a_confirmation_wakes_the_link_while_the_server_waits() {
    let options = FeedbackOptions { idle_advance: false, ..FeedbackOptions::default() };
    let (mut server, caller) = start(options);
    server.send(&keepalive(120, true)).await;
    assert_eq!(server.update().await.flush, 0);
    server.send(&keepalive(120, true)).await;
    while !caller.shared.awaited.load(Ordering::Acquire) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    caller.shared.confirmed.store(120, Ordering::Release);
    caller.shared.wake.notify_one();
    loop {
        let update = server.update().await;
        if update.flush == 120 {
            break;
        }
    }
}

#[tokio::test]
async fn an_orderly_stop_says_the_last_position_and_waits_for_the_server() {
    let (mut server, caller) = start(FeedbackOptions::default());
    server.send(&[begin(), commit(90), begin()].concat()).await;
    while caller.shared.received.load(Ordering::Acquire) < 90 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    caller.shared.confirmed.store(90, Ordering::Release);
    caller.shared.stop.store(true, Ordering::Release);
    caller.shared.wake.notify_one();
    assert_eq!(server.update().await.flush, 90);
    assert_eq!(server.next().await.map(|(tag, _)| tag), Some(b'c'));
    // more of the open transaction, and the end
    let rest = [xlog(&[b'I'; 100_000]), message(b'c', b""), message(b'C', b"COPY 0\0")];
    server.send(&rest.concat()).await;
    server.send(&message(b'Z', b"I")).await;
    assert_eq!(server.next().await.map(|(tag, _)| tag), Some(b'X'));
    assert_eq!(caller.task.await.unwrap().unwrap(), Lsn::from(90));
}

#[tokio::test]
async fn a_server_that_takes_its_leave_is_shutting_down() {
    let (mut server, caller) = start(FeedbackOptions::default());
    server.send(&[message(b'N', b"SNOTICE\0\0"), message(b'S', b"a\0b\0")].concat()).await;
    server.send(&message(b'C', b"COPY 0\0")).await;
    let error = caller.task.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::ServerShuttingDown(_)), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the bytes are cut on the way, the same frames come out, in order.
    #[test]
    fn frames_are_put_together_again(
        bodies in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..300), any::<bool>()), 1..60),
        cuts in proptest::collection::vec(1..200_usize, 1..40),
    ) {
        // a body of another kind than B and C, which the link itself reads
        let bodies: Vec<Vec<u8>> =
            bodies.into_iter().map(|(mut body, big)| {
                body.insert(0, b'I');
                body.resize(body.len() * if big { 30 } else { 1 }, 1);
                body
            }).collect();
        let bytes: Vec<u8> = bodies.iter().flat_map(|body| xlog(body)).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let found = runtime.block_on(async {
            let options = FeedbackOptions { read_buffer: 4096, ..FeedbackOptions::default() };
            let (mut server, mut caller) = start(options);
            tokio::spawn(async move {
                let mut rest = &bytes[..];
                for cut in cuts.iter().cycle() {
                    let (head, tail) = rest.split_at((*cut * 7).min(rest.len()));
                    server.send(head).await;
                    tokio::task::yield_now().await;
                    rest = tail;
                    if rest.is_empty() { break; }
                }
            });
            let mut chunks = Vec::new();
            while let Some(chunk) = caller.chunks.recv().await {
                assert_eq!(Chunk::from_frames(chunk.clone().into_bytes()).unwrap(), chunk);
                chunks.push(chunk);
            }
            frames_of(&chunks)
        });
        prop_assert_eq!(found, bodies);
    }
}
