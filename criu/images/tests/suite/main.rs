//! Reader, verification and writer against folders on disk: made up ones, damaged ones, and a real one.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set up its folder has failed")]

mod contents;
mod damage;
mod findings;
mod image;
mod limits;
mod rich;
mod writing;
