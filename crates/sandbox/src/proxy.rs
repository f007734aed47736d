//! A TCP proxy that fails on demand.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Result};
use crate::port::Port;

/// What the proxy does with connections and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    Pause,
    SwallowReplies,
    Refuse,
}

/// The way that bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

/// What [`Proxy`] tells its tasks.
#[derive(Debug, Clone, Copy)]
struct State {
    mode: Mode,
    /// Connections of an earlier generation end.
    generation: u64,
    pace: Pace,
    /// Request bytes that still pass; the connection that would exceed them is cut.
    allowance: Option<u64>,
}

/// How slowly bytes pass, each way of each connection by itself.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    /// Before each piece that was read at once.
    delay: Duration,
    /// At most so many in a second.
    bytes_per_second: Option<NonZeroU32>,
}

impl Pace {
    /// How long a piece of this size waits.
    fn pause(self, bytes: usize) -> Duration {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let taken = self.bytes_per_second.map(|rate| Duration::from_secs(1) * bytes / rate.get());
        self.delay + taken.unwrap_or_default()
    }
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    replies: AtomicU64,
}

/// A TCP proxy on 127.0.0.1 in front of one address. Dropping it closes its connections.
#[derive(Debug)]
pub struct Proxy {
    port: Port,
    state: watch::Sender<State>,
    /// Whether the port is open.
    listening: watch::Receiver<bool>,
    /// Where new connections lead.
    target: Arc<Mutex<String>>,
    counters: Arc<Counters>,
    task: JoinHandle<()>,
}

/// A proxy that is not yet started; see [`Proxy::to`].
#[derive(Debug, Clone)]
pub struct ProxyBuilder {
    target: String,
}

impl ProxyBuilder {
    /// Starts to listen; the tasks run on the caller's runtime.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start(self) -> Result<Proxy> {
        let port = Port::reserve()?;
        let listener = listen(port.address()).await?;
        let (state, _) = watch::channel(State {
            mode: Mode::Forward,
            generation: 0,
            pace: Pace::default(),
            allowance: None,
        });
        let counters = Arc::<Counters>::default();
        let address = port.address();
        let (opened, listening) = watch::channel(true);
        let target = Arc::new(Mutex::new(self.target));
        let acceptor = Acceptor {
            address,
            target: Arc::clone(&target),
            state: state.clone(),
            opened,
            counters: Arc::clone(&counters),
        };
        let task = tokio::spawn(acceptor.run(listener));
        Ok(Proxy { port, state, listening, target, counters, task })
    }
}

impl Proxy {
    /// A proxy in front of `target` (`host:port`).
    pub fn to(target: impl ToString) -> ProxyBuilder {
        ProxyBuilder { target: target.to_string() }
    }

    /// The address that the proxy listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The port that the proxy listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// Stops forwarding both ways; connections stay open, and new ones are accepted.
    pub fn pause(&self) {
        self.set(Mode::Pause);
    }

    /// Forwards requests and withholds replies. [`resume`](Self::resume) delivers them,
    /// [`cut`](Self::cut) loses them: the client never learns what became of its requests.
    pub fn swallow_replies(&self) {
        self.set(Mode::SwallowReplies);
    }

    /// Drops every connection; new ones are treated as before.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Drops every connection and refuses new ones, as a server that is down does; returns when the
    /// port is closed.
    pub async fn refuse(&self) {
        self.state.send_modify(|state| {
            state.mode = Mode::Refuse;
            state.generation += 1;
        });
        // an error means that the proxy's task has ended, and its listener with it
        let _ = self.listening.clone().wait_for(|listening| !listening).await;
    }

    /// Forwards again. After [`refuse`](Self::refuse) the port opens a moment later.
    pub fn resume(&self) {
        self.set(Mode::Forward);
    }

    /// Passes this many further request bytes and then drops every connection, wherever in a request
    /// that is; new ones pass.
    pub fn cut_after(&self, request_bytes: u64) {
        self.state.send_modify(|state| state.allowance = Some(request_bytes));
    }

    /// Holds every piece back for this long before it passes; zero for no longer.
    pub fn delay(&self, delay: Duration) {
        self.state.send_modify(|state| state.pace.delay = delay);
    }

    /// Passes at most this many bytes a second each way of each connection; 0 for no limit.
    pub fn throttle(&self, bytes_per_second: u32) {
        let rate = NonZeroU32::new(bytes_per_second);
        self.state.send_modify(|state| state.pace.bytes_per_second = rate);
    }

    /// Leads new connections to another target, as an address does that moves to a successor.
    /// Connections that stand go on; [`cut`](Self::cut) ends them.
    pub fn point_at(&self, target: impl ToString) {
        *self.target.lock().unwrap_or_else(PoisonError::into_inner) = target.to_string();
    }

    fn set(&self, mode: Mode) {
        self.state.send_modify(|state| state.mode = mode);
    }

    /// Connections accepted so far.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.counters.connections.load(Ordering::Relaxed)
    }

    /// Bytes forwarded from clients to the target so far.
    #[must_use]
    pub fn request_bytes(&self) -> u64 {
        self.counters.requests.load(Ordering::Relaxed)
    }

    /// Bytes forwarded from the target to clients so far.
    #[must_use]
    pub fn reply_bytes(&self) -> u64 {
        self.counters.replies.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn listen(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .map_err(|source| Error::Io { what: format!("listen on {address}"), source })
}

/// The proxy's own task.
struct Acceptor {
    address: SocketAddr,
    target: Arc<Mutex<String>>,
    state: watch::Sender<State>,
    opened: watch::Sender<bool>,
    counters: Arc<Counters>,
}

impl Acceptor {
    /// Accepts connections, with the listener closed while they are refused.
    async fn run(self, first: TcpListener) {
        let mut changes = self.state.subscribe();
        let mut listener = Some(first);
        loop {
            let refuse = changes.borrow_and_update().mode == Mode::Refuse;
            if refuse {
                listener = None;
            } else if listener.is_none() {
                match listen(self.address).await {
                    Ok(opened) => listener = Some(opened),
                    Err(error) => return tracing::error!(%error, "proxy cannot listen again"),
                }
            }
            self.opened.send_replace(listener.is_some());
            let accepted = async {
                match &listener {
                    Some(listener) => listener.accept().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                accepted = accepted => if let Ok((client, _)) = accepted {
                    self.counters.connections.fetch_add(1, Ordering::Relaxed);
                    let target = self.target.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let counters = Arc::clone(&self.counters);
                    tokio::spawn(serve(client, target, self.state.clone(), counters));
                },
            }
        }
    }
}

/// One connection, until either side closes it or it is cut.
async fn serve(
    client: TcpStream,
    target: String,
    shared: watch::Sender<State>,
    counters: Arc<Counters>,
) {
    let mut state = shared.subscribe();
    let born = state.borrow_and_update().generation;
    let forward = async {
        let Ok(server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (mut client, mut server) = (client, server);
        let (mut client_read, mut client_write) = client.split();
        let (mut server_read, mut server_write) = server.split();
        let requests = pump(&mut client_read, &mut server_write, Way::Request, &shared, &counters);
        let replies = pump(&mut server_read, &mut client_write, Way::Reply, &shared, &counters);
        // either side may close its half first; an error closes both
        let _ = tokio::try_join!(requests, replies);
    };
    tokio::select! {
        () = forward => {}
        _ = state.wait_for(|state| state.generation != born) => {}
    }
}

async fn pump(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    way: Way,
    shared: &watch::Sender<State>,
    counters: &Counters,
) -> io::Result<()> {
    let mut state = shared.subscribe();
    let mut buffer = vec![0; 64 * 1024];
    let counter = match way {
        Way::Request => &counters.requests,
        Way::Reply => &counters.replies,
    };
    loop {
        let mut count = from.read(&mut buffer).await?;
        let pause = state.borrow().pace.pause(count);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        // what was read just before a pause waits here
        if state.wait_for(|state| passes(state.mode, way)).await.is_err() {
            return Ok(());
        }
        if count == 0 {
            return to.shutdown().await;
        }
        let last = way == Way::Request && spend(shared, &mut count);
        to.write_all(buffer.get(..count).unwrap_or_default()).await?;
        counter.fetch_add(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
        if last {
            shared.send_modify(|state| state.generation += 1);
        }
    }
}

/// Takes `count` bytes from the allowance, or as many as it has. Returns whether it is used up by
/// that: then it is gone, and these bytes are the last ones.
fn spend(shared: &watch::Sender<State>, count: &mut usize) -> bool {
    let mut last = false;
    // nobody who watches needs to know how much is left
    shared.send_if_modified(|state| {
        if let Some(left) = state.allowance {
            let asked = u64::try_from(*count).unwrap_or(u64::MAX);
            last = asked >= left;
            *count = usize::try_from(left.min(asked)).unwrap_or(*count);
            state.allowance = (!last).then_some(left - left.min(asked));
        }
        false
    });
    last
}

fn passes(mode: Mode, way: Way) -> bool {
    match mode {
        Mode::Forward => true,
        Mode::SwallowReplies => way == Way::Request,
        Mode::Pause | Mode::Refuse => false,
    }
}
