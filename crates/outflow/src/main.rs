//! The outflow command line.
fn main() {}
