//! The real CRIU and real processes. Each test says why it cannot run here; with `DEFROST_REQUIRE_SYSTEM=1` that fails it.
#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking; clippy.toml covers only the functions marked as tests"
)]

mod self_dump;
mod subject;
mod transport;
