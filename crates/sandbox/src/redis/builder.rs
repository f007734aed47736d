//! Settings of a Redis server, and its first start.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use super::Redis;
use crate::account::{Account, take};
use crate::daemon::{Daemon, Home, blocking};
use crate::error::{Error, Result};
use crate::port::Port;
use crate::{binaries, place};

/// Attempts to start when other processes take the port first.
const PORT_ATTEMPTS: u32 = 5;

/// When the append-only file is synced (`appendfsync`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fsync {
    /// Never; the operating system decides.
    No,
    /// Once a second: a crash of the machine may lose a second.
    EverySec,
    /// Before every reply.
    Always,
}

/// What the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Server,
    Sentinel,
    ClusterNode,
}

/// Settings of a server that is not yet started; see [`Redis::builder`].
#[derive(Debug, Clone)]
pub struct RedisBuilder {
    settings: Vec<(String, String)>,
    password: Option<String>,
    tls: Option<(PathBuf, PathBuf)>,
    client_ca: Option<PathBuf>,
    role: Role,
    on_disk: bool,
    bin: Option<PathBuf>,
    start_timeout: Duration,
}

impl RedisBuilder {
    pub(super) fn new() -> Self {
        Self {
            settings: Vec::new(),
            password: None,
            tls: None,
            client_ca: None,
            role: Role::Server,
            on_disk: false,
            bin: None,
            start_timeout: Duration::from_secs(30),
        }
    }

    /// Sets a directive of `redis.conf`; a later value of the same directive wins where it takes one.
    #[must_use]
    pub fn setting(mut self, name: impl Into<String>, value: impl ToString) -> Self {
        self.settings.push((name.into(), value.to_string()));
        self
    }

    /// Turns the append-only file on. Without it nothing survives the end of the server.
    #[must_use]
    pub fn appendonly(self, fsync: Fsync) -> Self {
        let policy = match fsync {
            Fsync::No => "no",
            Fsync::EverySec => "everysec",
            Fsync::Always => "always",
        };
        self.setting("appendonly", "yes").setting("appendfsync", policy)
    }

    /// Keeps the files on the disk: for measurements of the append-only file, which is only worth
    /// its `fsync` there.
    #[must_use]
    pub fn on_disk(mut self) -> Self {
        self.on_disk = true;
        self
    }

    /// Asks clients for this password; [`Redis::url`] holds it. Letters and digits only.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Asks clients for TLS, with this PEM certificate (for 127.0.0.1) and key; both are copied.
    #[must_use]
    pub fn tls(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.tls = Some((certificate.into(), key.into()));
        self
    }

    /// Asks clients for a certificate of this PEM authority; the file is copied.
    #[must_use]
    pub fn tls_client_ca(mut self, authority: impl Into<PathBuf>) -> Self {
        self.client_ca = Some(authority.into());
        self
    }

    /// Starts a sentinel that watches `primary` under this name, in place of a server. It finds the
    /// replicas and the other sentinels of the same primary by itself; half a second without an
    /// answer counts as down.
    #[must_use]
    pub fn sentinel_of(mut self, name: &str, primary: &Redis, quorum: u32) -> Self {
        self.role = Role::Sentinel;
        let monitor = format!("monitor {name} 127.0.0.1 {} {quorum}", primary.port());
        let this = self.setting("sentinel", monitor);
        let this = match &primary.password {
            Some(password) => this.setting("sentinel", format!("auth-pass {name} {password}")),
            None => this,
        };
        this.setting("sentinel", format!("down-after-milliseconds {name} 500"))
            .setting("sentinel", format!("failover-timeout {name} 5000"))
    }

    /// Makes the server a node of a cluster; see [`RedisCluster`](super::RedisCluster).
    pub(super) fn cluster_node(mut self) -> Self {
        self.role = Role::ClusterNode;
        self
    }

    /// Uses the programs in this folder rather than those that are found.
    #[must_use]
    pub fn bin_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.bin = Some(folder.into());
        self
    }

    /// How long a start may take, loading included. 30 s by default.
    #[must_use]
    pub fn start_timeout(mut self, timeout: Duration) -> Self {
        self.start_timeout = timeout;
        self
    }

    /// Starts the server and waits until it answers and has loaded its data.
    ///
    /// # Errors
    /// When no binary is found ([`Error::Missing`]) or the server does not come up
    /// ([`Error::Start`], with the end of its log).
    ///
    /// # Cancel safety
    /// Cancelling removes the half-started server.
    pub async fn start(self) -> Result<Redis> {
        let mut attempt = 1;
        loop {
            let mut redis = self.prepare().await?;
            match redis.start_again().await {
                Err(error) if error.port_taken() && attempt < PORT_ATTEMPTS => attempt += 1,
                Err(error) => return Err(error),
                Ok(_) => {
                    redis.version =
                        redis.info("server").await?.get("redis_version").unwrap_or_default();
                    return Ok(redis);
                }
            }
        }
    }

    async fn prepare(&self) -> Result<Redis> {
        let this = self.clone();
        blocking(move || {
            let bin = binaries::redis(this.bin.as_deref())?;
            let account = Account::of_servers()?;
            let port = Port::reserve()?;
            let parent = place::parent(!this.on_disk);
            let home = Home::create(&parent, account, &port.address().to_string(), "KILL")?;
            let bus = match this.role {
                Role::ClusterNode => Some(Port::reserve()?),
                Role::Server | Role::Sentinel => None,
            };
            let conf = home.path().join("redis.conf");
            let text = this.configuration(home.path(), &port, bus.as_ref(), account)?;
            fs::write(&conf, text).map_err(Error::io("write", &conf))?;
            account.give(&conf, 0o600)?;
            let mut args = vec![conf.display().to_string()];
            if this.role == Role::Sentinel {
                args.push("--sentinel".to_owned());
            }
            let program = bin.join("redis-server");
            let daemon =
                Daemon::new("redis-server", program, args, account, port, home, Signal::KILL);
            Ok(Redis {
                daemon,
                bus,
                tls: this.tls.is_some(),
                password: this.password,
                version: String::new(),
                start_timeout: this.start_timeout,
            })
        })
        .await
    }

    fn configuration(
        &self,
        home: &Path,
        port: &Port,
        bus: Option<&Port>,
        account: Account,
    ) -> Result<String> {
        let mut conf = String::new();
        let (plain, encrypted) =
            if self.tls.is_some() { (0, port.number()) } else { (port.number(), 0) };
        directive(&mut conf, "port", plain)?;
        directive(&mut conf, "bind", "127.0.0.1")?;
        directive(&mut conf, "unixsocket", home.join("redis.sock").display())?;
        directive(&mut conf, "unixsocketperm", "700")?;
        directive(&mut conf, "dir", home.display())?;
        directive(&mut conf, "save", "")?;
        directive(&mut conf, "appendonly", "no")?;
        // by default a primary waits 5 s for further replicas before it syncs the first one
        directive(&mut conf, "repl-diskless-sync-delay", "0")?;
        if let Some(password) = &self.password {
            directive(&mut conf, "requirepass", password)?;
        }
        if let Some((certificate, key)) = &self.tls {
            take(certificate, &home.join("server.crt"), account)?;
            take(key, &home.join("server.key"), account)?;
            directive(&mut conf, "tls-port", encrypted)?;
            directive(&mut conf, "tls-cert-file", home.join("server.crt").display())?;
            directive(&mut conf, "tls-key-file", home.join("server.key").display())?;
            let ask = if self.client_ca.is_some() { "yes" } else { "no" };
            directive(&mut conf, "tls-auth-clients", ask)?;
        }
        if let Some(authority) = &self.client_ca {
            take(authority, &home.join("ca.crt"), account)?;
            directive(&mut conf, "tls-ca-cert-file", home.join("ca.crt").display())?;
        }
        if let Some(bus) = bus {
            directive(&mut conf, "cluster-enabled", "yes")?;
            directive(&mut conf, "cluster-port", bus.number())?;
            directive(&mut conf, "cluster-node-timeout", "2000")?;
        }
        for (name, value) in &self.settings {
            directive(&mut conf, name, value)?;
        }
        Ok(conf)
    }
}

/// One line of `redis.conf`. A value with several arguments (`client-output-buffer-limit`) is
/// written as it is; an empty one as `""`.
fn directive(conf: &mut String, name: &str, value: impl ToString) -> Result<()> {
    let value = value.to_string();
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if name.is_empty() || !name.chars().all(valid) || value.contains(['\n', '\r']) {
        return Err(Error::BadSetting(name.to_owned()));
    }
    let value = if value.is_empty() { "\"\"" } else { &value };
    // writing to a String cannot fail
    let _ = writeln!(conf, "{name} {value}");
    Ok(())
}
