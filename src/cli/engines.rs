//! Which engine a restore takes, and how that is to bring memory back, as it was typed.

use std::time::Duration;

use super::Options;
#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
use super::failure::HOST;
use super::failure::{Failure, USAGE};
use super::restore::seconds;
use crate::engine::Engine;
use crate::engine::auto::AutoEngine;
use crate::engine::criu::{CriuEngine, Transport};
use crate::image::Image;

/// An engine, and why this one: a phrase.
pub(super) type Chosen = (Box<dyn Engine>, &'static str);

/// What concerns the engine.
#[derive(Debug, clap::Args)]
pub(super) struct EngineArguments {
    /// What restores: instant maps the memory of an image, or says why it cannot; criu restores every image; auto
    /// takes instant where it can, else criu; simulated verifies, and starts nothing
    #[arg(long, value_enum, env = "DEFROST_ENGINE", default_value_t = EngineChoice::Auto)]
    engine: EngineChoice,
    /// How criu is told what to restore: by messages, or by its command line. With --engine auto it has criu restore
    #[arg(long, value_enum)]
    transport: Option<TransportChoice>,
    /// How the instant engine brings memory back: auto maps it where the server is right with that, as those
    /// are that link defrost, whatever their allocator, and copies it elsewhere; fault has a helper process
    /// fill it on demand
    #[arg(long, value_enum, default_value_t = Memory::Auto)]
    memory: Memory,
    /// Record which pages the server touches in the first SECONDS, beside the image: later restores bring them at
    /// once. Takes the instant engine, with memory that is mapped or filled on demand
    #[arg(
        long,
        value_name = "SECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5",
        value_parser = seconds
    )]
    record: Option<f64>,
    /// Do not bring the pages of a recorded working set at once
    #[arg(long)]
    no_prefetch: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum EngineChoice {
    Auto,
    Criu,
    Instant,
    Simulated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum TransportChoice {
    Rpc,
    Cli,
}

impl From<TransportChoice> for Transport {
    fn from(choice: TransportChoice) -> Self {
        match choice {
            TransportChoice::Rpc => Self::Rpc,
            TransportChoice::Cli => Self::Cli,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Memory {
    Auto,
    /// The image's pages file is mapped, and must stay as it is while the server lives
    Map,
    Copy,
    /// A pager fills it, what is asked for first
    Fault,
}

impl EngineArguments {
    /// Whether criu restores in any case. Where auto takes it after all, that is known, and it is looked for, only then.
    pub(super) fn is_criu(&self) -> bool {
        self.engine == EngineChoice::Criu || (self.engine == EngineChoice::Auto && self.transport.is_some())
    }

    /// Whether the image is only looked at.
    pub(super) fn starts_nothing(&self) -> bool {
        self.engine == EngineChoice::Simulated
    }

    /// Whether several restores share the memory of the image, as they do where it is mapped: auto does that where it
    /// can.
    pub(super) fn shares_memory(&self) -> bool {
        !self.is_criu() && matches!(self.memory, Memory::Auto | Memory::Map)
    }

    /// The engine. None if nothing is to be started.
    pub(super) fn engine(&self, options: &Options, image: &Image) -> Result<Option<Chosen>, Failure> {
        let criu = || {
            CriuEngine::new(options.criu.clone())
                .by(self.transport.map_or_else(Transport::default, Into::into))
        };
        let asked = "it was asked for";
        let (engine, why): Chosen = match self.engine {
            EngineChoice::Simulated => return Ok(None),
            EngineChoice::Criu if self.record.is_some() => {
                let hint = Some("leave --engine out, or name instant");
                return Err(Failure::new(USAGE, "--record needs the instant engine", hint));
            }
            EngineChoice::Instant => (self.instant(image)?, asked),
            // Another engine would record nothing.
            EngineChoice::Auto if self.record.is_some() => {
                (self.instant(image)?, "it records what is touched")
            }
            EngineChoice::Criu => (Box::new(criu()), asked),
            EngineChoice::Auto if self.transport.is_some() => {
                (Box::new(criu()), "its transport was asked for")
            }
            EngineChoice::Auto => match self.instant(image) {
                Ok(instant) => {
                    (Box::new(AutoEngine::new(instant, Box::new(criu()))), "it can restore this image")
                }
                Err(_) => (Box::new(criu()), "there is no instant engine for this machine"),
            },
        };
        Ok(Some((engine, why)))
    }

    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[expect(clippy::unnecessary_wraps, reason = "there is none on other machines")]
    fn instant(&self, image: &Image) -> Result<Box<dyn Engine>, Failure> {
        use crate::engine::instant::{InstantEngine, MemoryMode};
        use crate::image::working_set::WorkingSet;
        let memory = match self.memory {
            Memory::Auto => MemoryMode::Auto,
            Memory::Map => MemoryMode::Map,
            Memory::Copy => MemoryMode::Copy,
            Memory::Fault => MemoryMode::Fault,
        };
        let set = if self.no_prefetch || self.record.is_some() {
            None
        } else {
            WorkingSet::load(image.path(), image.manifest().id).unwrap_or_else(|error| {
                note!("defrost: {error}; nothing is prefetched");
                None
            })
        };
        let time = self.record.map(Duration::from_secs_f64);
        Ok(Box::new(InstantEngine::new(memory).prefetching(set).recording(time)))
    }

    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    fn instant(&self, _image: &Image) -> Result<Box<dyn Engine>, Failure> {
        let hint = Some("use --engine criu, which restores the same image".to_owned());
        Err(Failure::new(HOST, "the instant engine exists for x86-64 Linux only", hint))
    }
}
