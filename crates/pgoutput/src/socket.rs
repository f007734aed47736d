//! The socket below the protocol: TCP, TLS over TCP, or a Unix socket.

use std::{
    io,
    net::SocketAddr,
    os::fd::AsFd,
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll},
};

use nix::{libc, setsockopt_impl, sys::socket::SetSockOpt, sys::socket::sockopt::SetUsize};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
};
use tokio_rustls::client::TlsStream;

/// `SO_RCVLOWAT`: a reader is not woken before so many bytes are there.
/// No crate has it ready-made; this is nix's own way of defining an option.
#[derive(Clone)]
struct RcvLowat;

setsockopt_impl!(RcvLowat, libc::SOL_SOCKET, libc::SO_RCVLOWAT, usize, SetUsize);

pub(crate) enum Socket {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Socket {
    pub(crate) async fn tcp(
        addr: SocketAddr,
        config: &tokio_postgres::Config,
    ) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        let socket = SockRef::from(&stream);
        if let Some(&timeout) = config.get_tcp_user_timeout() {
            socket.set_tcp_user_timeout(Some(timeout))?;
        }
        if config.get_keepalives() {
            let mut keepalive = TcpKeepalive::new().with_time(config.get_keepalives_idle());
            if let Some(interval) = config.get_keepalives_interval() {
                keepalive = keepalive.with_interval(interval);
            }
            if let Some(retries) = config.get_keepalives_retries() {
                keepalive = keepalive.with_retries(retries);
            }
            socket.set_tcp_keepalive(&keepalive)?;
        }
        Ok(stream)
    }

    pub(crate) async fn unix(path: PathBuf) -> io::Result<Self> {
        UnixStream::connect(path).await.map(Self::Unix)
    }

    fn tcp_stream(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            Self::Tls(stream) => Some(stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    pub(crate) fn peer_certificate(&self) -> Option<&[u8]> {
        match self {
            Self::Tls(stream) => {
                stream.get_ref().1.peer_certificates()?.first().map(|cert| cert.as_ref())
            }
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }

    /// Bytes that must be there before a read is woken; 1 wakes at once, also for what is there already.
    /// False where the kernel does not do it (Unix sockets).
    pub(crate) fn set_low_water(&self, bytes: usize) -> bool {
        self.tcp_stream().is_some_and(|stream| RcvLowat.set(&stream.as_fd(), &bytes).is_ok())
    }

    pub(crate) fn set_recv_buffer(&self, bytes: usize) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream).set_recv_buffer_size(bytes),
            Self::Tls(stream) => SockRef::from(stream.get_ref().0).set_recv_buffer_size(bytes),
            Self::Unix(stream) => SockRef::from(stream).set_recv_buffer_size(bytes),
        }
    }
}

impl AsyncRead for Socket {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_read(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Self::Tls(s) => Pin::new(s).poll_write(cx, buf),
            Self::Unix(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_flush(cx),
            Self::Tls(s) => Pin::new(s).poll_flush(cx),
            Self::Unix(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Self::Tls(s) => Pin::new(s).poll_shutdown(cx),
            Self::Unix(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
