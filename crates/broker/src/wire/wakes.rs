//! How often a reader is woken.
//!
//! Redis works through a transaction in pieces of 16 KiB and answers each piece at once: twenty times
//! a batch, with nothing in it that can be acted upon before the last. On a machine with two
//! cores each time takes one of them away from the server.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{SetSockOpt, sockopt::SetUsize};
use nix::{libc, setsockopt_impl};
use tokio::net::TcpStream;

/// `SO_RCVLOWAT` (Linux manual, socket(7)): a reader is not woken before so many bytes are there, or the
/// connection ends. No crate has it ready-made; this is nix's own way of defining an option.
#[derive(Clone)]
struct RcvLowat;

setsockopt_impl!(RcvLowat, libc::SOL_SOCKET, libc::SO_RCVLOWAT, usize, SetUsize);

/// The mark of one socket.
pub(super) struct Wakes {
    /// `None` where the kernel does not do it, or the bytes on the socket are not those of the replies.
    socket: Option<OwnedFd>,
    /// As it was set last.
    mark: usize,
}

impl Wakes {
    pub(super) fn of(stream: &TcpStream) -> Self {
        Self { socket: stream.as_fd().try_clone_to_owned().ok(), mark: 1 }
    }

    /// Of a socket whose reader is woken for whatever comes.
    pub(super) fn always() -> Self {
        Self { socket: None, mark: 1 }
    }

    /// The reader is woken when `bytes` are there. They must be certain to come.
    pub(super) fn after(&mut self, bytes: usize) {
        let mark = bytes.max(1);
        if mark == self.mark {
            return;
        }
        self.mark = mark;
        // what is there already is signalled at once
        if self.socket.as_ref().is_some_and(|socket| RcvLowat.set(socket, &mark).is_err()) {
            self.socket = None;
        }
    }
}
