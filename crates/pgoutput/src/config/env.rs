//! The variables of libpq (PostgreSQL documentation, "Environment Variables"), for what the connection string leaves
//! open.

use std::time::Duration;

use tokio_postgres::config::{ChannelBinding, SslNegotiation, TargetSessionAttrs};

use crate::Error;

/// Completes the options from the environment.
pub(super) fn fill(
    config: &mut tokio_postgres::Config,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    fn each<T: std::str::FromStr>(name: &str, list: &str) -> Result<Vec<T>, Error> {
        let bad = |item: &str| Error::Config(format!("{name}: {item:?} is not usable"));
        list.split(',').map(|item| item.trim().parse().map_err(|_| bad(item))).collect()
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        if let Some(addrs) = env("PGHOSTADDR") {
            for addr in each("PGHOSTADDR", &addrs)? {
                config.hostaddr(addr);
            }
        }
        match env("PGHOST") {
            Some(hosts) => hosts.split(',').for_each(|host| {
                config.host(host.trim());
            }),
            None if config.get_hostaddrs().is_empty() => {
                config.host("localhost");
            }
            None => {}
        }
    }
    if let (true, Some(ports)) = (config.get_ports().is_empty(), env("PGPORT")) {
        for port in each("PGPORT", &ports)? {
            config.port(port);
        }
    }
    if let (None, Some(user)) = (config.get_user(), env("PGUSER")) {
        config.user(user);
    }
    if let (None, Some(password)) = (config.get_password(), env("PGPASSWORD")) {
        config.password(password);
    }
    if let (None, Some(database)) = (config.get_dbname(), env("PGDATABASE")) {
        config.dbname(database);
    }
    if let (None, Some(options)) = (config.get_options(), env("PGOPTIONS")) {
        config.options(options);
    }
    if let (None, Some(name)) = (config.get_application_name(), env("PGAPPNAME")) {
        config.application_name(name);
    }
    if let (None, Some(seconds)) = (config.get_connect_timeout(), env("PGCONNECT_TIMEOUT")) {
        let seconds: u64 = seconds.parse().map_err(|_| {
            Error::Config(format!("PGCONNECT_TIMEOUT: {seconds:?} is not a number of seconds"))
        })?;
        if seconds > 0 {
            config.connect_timeout(Duration::from_secs(seconds));
        }
    }
    choices(config, env)
}

/// The variables with a few words to choose from.
fn choices(
    config: &mut tokio_postgres::Config,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<(), Error> {
    if let (TargetSessionAttrs::Any, Some(attrs)) =
        (config.get_target_session_attrs(), env("PGTARGETSESSIONATTRS"))
    {
        config.target_session_attrs(match attrs.as_str() {
            "any" => TargetSessionAttrs::Any,
            "read-write" | "primary" => TargetSessionAttrs::ReadWrite,
            "read-only" | "standby" => TargetSessionAttrs::ReadOnly,
            other => {
                return Err(Error::Config(format!(
                    "PGTARGETSESSIONATTRS: {other:?}: allowed are any, read-write, read-only"
                )));
            }
        });
    }
    if let (ChannelBinding::Prefer, Some(binding)) =
        (config.get_channel_binding(), env("PGCHANNELBINDING"))
    {
        config.channel_binding(match binding.as_str() {
            "disable" => ChannelBinding::Disable,
            "prefer" => ChannelBinding::Prefer,
            "require" => ChannelBinding::Require,
            other => {
                return Err(Error::Config(format!(
                    "PGCHANNELBINDING: {other:?}: allowed are disable, prefer, require"
                )));
            }
        });
    }
    if let (SslNegotiation::Postgres, Some(negotiation)) =
        (config.get_ssl_negotiation(), env("PGSSLNEGOTIATION"))
    {
        config.ssl_negotiation(match negotiation.as_str() {
            "postgres" => SslNegotiation::Postgres,
            "direct" => SslNegotiation::Direct,
            other => {
                return Err(Error::Config(format!(
                    "PGSSLNEGOTIATION: {other:?}: allowed are postgres, direct"
                )));
            }
        });
    }
    Ok(())
}
