//! The usual set-up of a server in one call: its subject, its standard streams and its control socket.
//!
//! It adds nothing of its own: whoever needs other choices makes the three parts by hand.

use std::error::Error;

use crate::adapters::Stdio;
use crate::checkpoint::Subject;
use crate::context::Context;
use crate::control::{Control, ControlOptions, StopOrigin};

/// A server that can be checkpointed.
#[derive(Debug)]
pub struct App {
    subject: Subject,
    control: Control,
    _stdio: Stdio,
}

impl App {
    /// Makes this process a [`Subject`] of this name, dumped by CRIU, whose standard streams are put on
    /// `/dev/null` for a dump, with a control socket of the same name. SIGTERM and SIGINT complete
    /// [`App::stopped`] instead of ending the process.
    ///
    /// # Errors
    /// A standard stream or the socket could not be had, or the name is taken by a live server.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O and time.
    pub fn start(name: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let subject = Subject::new(name)?;
        // Registered first, so put down last: what the others have to say still gets out.
        let stdio = Stdio::register(subject.context(), None)?;
        let control = Control::start(&subject, ControlOptions::default())?;
        Ok(Self { subject, control, _stdio: stdio })
    }

    /// This process, to checkpoint it from inside.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Where resources register.
    #[must_use]
    pub fn context(&self) -> &Context {
        self.subject.context()
    }

    /// Completes when the process shall end; see [`Control::stopped`].
    pub async fn stopped(&self) -> StopOrigin {
        self.control.stopped().await
    }
}
