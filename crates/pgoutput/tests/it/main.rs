//! The client against real PostgreSQL servers. Test names carry the number of the incident that they stand
//! for.

mod auth;
mod commands;
mod content;
mod hosts;
mod link;
mod positions;
mod shutdown;
mod support;
