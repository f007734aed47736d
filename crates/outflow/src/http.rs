//! Health, readiness, status and metrics of a running process.
