//! Startup latency: how long it takes from a command to the first correct answer, in every way to start a service.

pub mod record;
