//! A TCP proxy that fails on demand.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

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
        let (state, _) = watch::channel(State { mode: Mode::Forward, generation: 0 });
        let counters = Arc::<Counters>::default();
        let address = port.address();
        let (opened, listening) = watch::channel(true);
        let acceptor = Acceptor {
            address,
            target: self.target,
            state: state.clone(),
            opened,
            counters: Arc::clone(&counters),
        };
        let task = tokio::spawn(acceptor.run(listener));
        Ok(Proxy { port, state, listening, counters, task })
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
    target: String,
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
                    let (target, state) = (self.target.clone(), self.state.subscribe());
                    tokio::spawn(serve(client, target, state, Arc::clone(&self.counters)));
                },
            }
        }
    }
}

/// One connection, until either side closes it or it is cut.
async fn serve(
    client: TcpStream,
    target: String,
    mut state: watch::Receiver<State>,
    counters: Arc<Counters>,
) {
    let born = state.borrow_and_update().generation;
    let (request_state, reply_state) = (state.clone(), state.clone());
    let forward = async {
        let Ok(server) = TcpStream::connect(target).await else { return };
        let _ = (client.set_nodelay(true), server.set_nodelay(true));
        let (mut client, mut server) = (client, server);
        let (mut client_read, mut client_write) = client.split();
        let (mut server_read, mut server_write) = server.split();
        let requests =
            pump(&mut client_read, &mut server_write, Way::Request, request_state, &counters);
        let replies = pump(&mut server_read, &mut client_write, Way::Reply, reply_state, &counters);
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
    mut state: watch::Receiver<State>,
    counters: &Counters,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let counter = match way {
        Way::Request => &counters.requests,
        Way::Reply => &counters.replies,
    };
    loop {
        let count = from.read(&mut buffer).await?;
        // what was read just before a pause waits here
        if state.wait_for(|state| passes(state.mode, way)).await.is_err() {
            return Ok(());
        }
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(buffer.get(..count).unwrap_or_default()).await?;
        counter.fetch_add(u64::try_from(count).unwrap_or_default(), Ordering::Relaxed);
    }
}

fn passes(mode: Mode, way: Way) -> bool {
    match mode {
        Mode::Forward => true,
        Mode::SwallowReplies => way == Way::Request,
        Mode::Pause | Mode::Refuse => false,
    }
}
