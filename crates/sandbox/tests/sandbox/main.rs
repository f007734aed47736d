//! The sandbox against real servers.

mod logs;
mod owner;
mod postgres;
mod proxy;
mod redis;
mod tls;
