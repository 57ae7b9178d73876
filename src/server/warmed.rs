//! A warm-up that is done before there is a server, a runtime or a second thread: by a parent that forks a server for
//! each start.
//!
//! It must not know who forks, or how.

use std::sync::Arc;

use super::ServerOptions;
#[cfg(feature = "highlight")]
use super::highlight::{self, UnknownLanguage, Warmup};
use super::warm::Warm;
use super::warming::WarmError;

/// What a server would warm up at its start; [`Server::start_warmed`](super::Server::start_warmed) takes it over.
#[derive(Debug, Default)]
pub struct Warmed {
    pub(super) memory: Option<Arc<Warm>>,
    #[cfg(feature = "highlight")]
    pub(super) grammars: Option<Arc<Warmup>>,
}

/// Why there is nothing warm. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WarmedError {
    /// The warm-up itself failed.
    #[error(transparent)]
    Warm(#[from] WarmError),
    /// A language to warm has no grammar.
    #[cfg(feature = "highlight")]
    #[error("warm: {0}")]
    Language(#[from] UnknownLanguage),
}

impl Warmed {
    /// Warms up what these options say. The threads that work on it have ended when it returns, so that this process
    /// may fork if it had none before.
    ///
    /// # Errors
    /// [`WarmedError`]
    pub fn of(options: &ServerOptions) -> Result<Self, WarmedError> {
        Ok(Self {
            memory: options.warm.map(Warm::now).transpose()?,
            #[cfg(feature = "highlight")]
            grammars: match &options.highlight {
                Some(options) => highlight::warm_now(options)?,
                None => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Server, WarmOptions};
    use super::*;
    use crate::Subject;
    use crate::engine::simulated::SimulatedEngine;

    #[test]
    fn a_server_that_was_warmed_before_is_ready_at_once() {
        let options = ServerOptions { warm: Some(WarmOptions::new(2)), ..ServerOptions::default() };
        #[cfg(feature = "highlight")]
        let options = {
            let warm = highlight::Warm::These(vec!["json".to_owned()]);
            let highlight = Some(highlight::HighlightOptions { warm, ..Default::default() });
            ServerOptions { highlight, ..options }
        };
        let warmed = Warmed::of(&options).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let subject = Subject::builder("warmed").engine(SimulatedEngine).build().unwrap();
            let server = Server::start_warmed(options, warmed, &subject).unwrap();
            assert!(subject.is_ready());
            server.warmed().await.unwrap();
            assert!(server.stop().await.is_empty());
        });
    }

    #[cfg(feature = "highlight")]
    #[test]
    fn an_unknown_language_is_told() {
        let warm = highlight::Warm::These(vec!["nope".to_owned()]);
        let highlight = Some(highlight::HighlightOptions { warm, ..Default::default() });
        let options = ServerOptions { highlight, ..ServerOptions::default() };
        assert!(matches!(Warmed::of(&options), Err(WarmedError::Language(_))));
    }
}
