//! Loopback ports that stay ours while a server is down.
//!
//! The usual trick, bind to port 0 and use what comes, hands out ephemeral ports: while a server is
//! restarting, any outgoing connection of the machine may take its port. These ports lie below the
//! ephemeral range, and a file lock keeps other sandboxes away from them.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use crate::cache::{self, Lock};
use crate::error::{Error, Result};

/// First port that is handed out.
const FIRST: u16 = 20_000;
/// Number of ports; the last one lies below Linux's ephemeral range, which starts at 32768.
const COUNT: u16 = 12_000;

/// A reserved port of 127.0.0.1.
#[derive(Debug)]
pub(crate) struct Port {
    number: u16,
    _reservation: Lock,
}

impl Port {
    /// Reserves a port that nobody listens on.
    pub(crate) fn reserve() -> Result<Self> {
        let folder = cache::folder("ports")?;
        // concurrent processes start looking at different places
        let random = RandomState::new().hash_one(std::process::id());
        let start = u16::try_from(random % u64::from(COUNT)).unwrap_or_default();
        for step in 0..COUNT {
            let number = FIRST + (start + step) % COUNT;
            let Some(reservation) = Lock::try_now(&folder.join(number.to_string()))? else {
                continue;
            };
            if TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Ok(Self { number, _reservation: reservation });
            }
        }
        Err(Error::NoPort { first: FIRST, last: FIRST + COUNT - 1 })
    }

    pub(crate) fn number(&self) -> u16 {
        self.number
    }

    pub(crate) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number).into()
    }
}
