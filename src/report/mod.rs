//! Pages for people: what a benchmark found, and what is in an image. One file each, which loads and runs nothing.
//!
//! | module | what |
//! |---|---|
//! | `runs` | the page of one or more records |
//! | `findings`, `cost` | what a record says, in sentences |
//! | `image` | the page of an image |
//! | `starts`, … | one figure each |
//! | `figure`, `axis`, `number` | how figures are drawn and numbers said |
//! | `page` | the page around them |
//! | [`write()`], [`Destination`] | a text becomes a file, whole or not at all |
//!
//! It reads records and images, and must not know how they were made.

mod axis;
mod cost;
mod figure;
mod findings;
mod history;
mod image;
mod latency;
mod memory;
mod number;
mod page;
mod runs;
mod starts;
#[cfg(test)]
mod tests;
mod waterfall;
mod way;
mod write;

pub use image::{ImagePage, image};
pub use runs::{Run, runs};
pub use write::{Destination, WriteError, write};
