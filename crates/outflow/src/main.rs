//! The outflow command line.
//!
//! | module | does |
//! | --- | --- |
//! | `cli` | global flags, the list of commands, exit codes |
//! | `config` | file, environment and flags to one validated configuration; `outflow config` |
//! | `init` | applies `sql/` to the databases |
//! | `relay`, `consume` | run the connector and a consumer until a signal |
//! | `status` | looks at everything from the outside |
//! | `dead_letters` | lists what was set aside, has it tried again, or gives it up |
//! | `conflicts` | lists, shows and settles the consumer's conflicts |
//! | `retention` | removes what nobody needs any more |
//! | `offsets` | shows the stored offset and its history; resets it after a refusal |
//! | `bench` | measures connector and consumer against the servers themselves; `outflow compare`, the connector against polling |
//! | `demo`, `drill` | a tour on throwaway servers; rehearsed failures |
//! | `oracle` | an independent check of everything |
//! | `rig` | what demo and drills share: processes that are killed, producers |
//! | `fault` | failpoints, armed by a flag |
//! | `given` | servers that were given to drills and the comparison: what they hold, and cleaning up |
//! | `lab` | a guided exercise: why an outbox, with SQLite and a Redis list |
//! | `completions` | writes shell completions |
//! | `failure` | how a failed command ends: message, remedy, exit code |
//! | `service` | what long-running commands share: runtime, signals, deadline |
//! | `http` | health, readiness, status and metrics of a running process |
//! | `log`, `output`, `database` | log lines, standard output, plain SQL connections |
//! | `markdown` | results in a file of the documentation |

mod bench;
mod cli;
mod completions;
mod config;
mod conflicts;
mod consume;
mod database;
mod dead_letters;
mod demo;
mod drill;
mod failure;
mod fault;
mod given;
mod http;
mod init;
mod lab;
mod log;
mod markdown;
mod offsets;
mod oracle;
mod output;
mod relay;
mod retention;
mod rig;
mod service;
mod status;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
