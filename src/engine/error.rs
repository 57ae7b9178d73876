//! Why a dump or a restore failed, who is still alive then, and what to do. It must not know how engines work.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::EngineName;
use crate::image::folder::FolderError;
use crate::image::verify::{Finding, taker_of_pids};
use crate::image::{Image, Users};

/// Why there is no image. The process that was to be dumped goes on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DumpError {
    /// The image's place is no good.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// CRIU is missing, or too old, or does not work here.
    #[error(transparent)]
    Criu(#[from] criu_driver::Error),
    /// The target holds memory that this process still uses: it was restored by mapping that image.
    #[error("{} cannot be replaced: this process uses memory of it", target.display())]
    InUse {
        /// The image folder.
        target: PathBuf,
    },
    /// The target is an image that others need.
    #[error("{} cannot be replaced: it is needed by {users}", target.display())]
    Needed {
        /// The image folder.
        target: PathBuf,
        /// Images that depend on it, and other processes that use memory of it.
        users: Users,
    },
    /// The process was restored a short while ago, and its memory is not all there yet.
    #[error("the memory of this process is not all there yet: {0}")]
    Filling(#[source] std::io::Error),
    /// The process that should have driven the dump did not start, or was killed.
    #[error("the helper process {problem}: {source}")]
    Helper {
        /// What it failed at.
        problem: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The dump, or the completion of its folder, failed; this is what the helper reported.
    #[error("{cause}")]
    Reported {
        /// The cause, chosen from CRIU's log where that is where it is.
        cause: String,
        /// What to do about it.
        hint: Option<String>,
        /// CRIU's log, kept for reading.
        log: Option<PathBuf>,
    },
}

impl DumpError {
    /// What the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Folder(error) => error.hint(),
            Self::Criu(error) => error.hint().map(str::to_owned),
            Self::InUse { .. } => {
                let whole = "images that `defrost image flatten` made whole";
                Some(format!("name another folder, or restore {whole} with --memory copy from now on"))
            }
            Self::Needed { users, .. } => Some(format!("name another folder, or {}", users.hint())),
            Self::Filling(_) => Some("try again when its pager has ended".to_owned()),
            Self::Helper { .. } => {
                Some("look for a kill or an out-of-memory event in the kernel's log".to_owned())
            }
            Self::Reported { hint, log, .. } => with_log(hint.clone(), log.as_deref()),
        }
    }
}

/// A hint that also says where CRIU's log is.
fn with_log(hint: Option<String>, log: Option<&Path>) -> Option<String> {
    match (hint, log) {
        (Some(hint), Some(log)) => Some(format!("{hint}; criu's log: {}", log.display())),
        (None, Some(log)) => Some(format!("read criu's log: {}", log.display())),
        (hint, None) => hint,
    }
}

/// The log of a failure of CRIU, where there is one.
pub(super) fn log_of(error: &criu_driver::Error) -> Option<&Path> {
    match error {
        criu_driver::Error::Failed { log_path, .. } => log_path.as_deref(),
        criu_driver::Error::LeftAlive { failure, .. } => log_of(failure),
        _ => None,
    }
}

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// CRIU is missing, or failed.
    #[error(transparent)]
    Criu(#[from] criu_driver::Error),
    /// There is no folder for CRIU's log. Nothing was started.
    #[error("no folder for criu's log: {0}")]
    Work(#[source] std::io::Error),
    /// The pipes to the restored process could not be made.
    #[error("the parameters could not be handed over: {0}")]
    Parameters(#[source] std::io::Error),
    /// The image was made without a way to hand parameters in.
    #[error("the image takes no parameters: it was not made by a defrost server's own checkpoint")]
    NoParameters,
    /// The image has something that the engine cannot restore. Nothing was started.
    #[error("the instant engine cannot restore this image: {}", .0.join("; "))]
    Unsupported(Vec<String>),
    /// A file of the image cannot be read. Nothing was started.
    #[error(transparent)]
    Image(#[from] criu_images::ReadError),
    /// The process could not be made; it has been ended.
    #[error("the process could not be restored: {step}: {source}")]
    Start {
        /// At what, and which of several.
        step: String,
        /// Why.
        source: std::io::Error,
    },
    /// A pid or tid of the image is taken, since it was last looked at. Nothing of the image runs. In a pid namespace of
    /// its own it would.
    #[error("{}: {refusal}", .taker.what)]
    PidTaken {
        /// Who has it.
        taker: Finding,
        /// What was refused, in the engine's words.
        refusal: String,
    },
    /// The process did not run in time; it has been killed.
    #[error("the process was not restored within {0:?} and was killed")]
    Late(Duration),
    /// The engine restores nothing.
    #[error("the {0} engine restores nothing")]
    NotRestoring(EngineName),
    /// The CRIU that is here must not restore this image.
    #[error("{}", .0.what)]
    Misfit(Finding),
    /// One engine did not restore the image, and the one that was taken instead failed.
    #[error("{failure} (criu was taken because {reason})")]
    Fallback {
        /// Why the first did not.
        reason: String,
        /// What the second failed at.
        failure: Box<RestoreError>,
    },
}

impl RestoreError {
    /// A refusal for a number that is taken, with who has it. What the engine made must have ended.
    pub(super) fn pid_taken(image: &Image, refusal: String) -> Self {
        Self::PidTaken { taker: taker_of_pids(image), refusal }
    }

    /// Who has a pid of the image, if that is what it failed at.
    #[must_use]
    pub fn taker(&self) -> Option<&Finding> {
        match self {
            Self::PidTaken { taker, .. } => Some(taker),
            Self::Fallback { failure, .. } => failure.taker(),
            _ => None,
        }
    }

    /// What the reader can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Criu(error) => with_log(error.hint().map(str::to_owned), log_of(error)),
            Self::Parameters(_) => Some("check the limits on descriptors and pipes".to_owned()),
            Self::Work(_) => Some("name a folder that can be written to by TMPDIR".to_owned()),
            Self::NoParameters => Some("restore it without arguments, --set and --env".to_owned()),
            Self::Unsupported(_) | Self::Start { .. } => {
                Some("as root, use --engine criu, which restores the same image".to_owned())
            }
            Self::Image(_) => {
                Some("look at the image with `defrost inspect`, or restore another one".to_owned())
            }
            Self::Late(_) => Some("allow more time by --timeout".to_owned()),
            Self::NotRestoring(_) => Some("use --engine criu".to_owned()),
            Self::Misfit(finding) | Self::PidTaken { taker: finding, .. } => Some(finding.remedy.clone()),
            Self::Fallback { failure, .. } => failure.hint(),
        }
    }

    /// Whether this host cannot do it, rather than this restore.
    #[must_use]
    pub fn is_of_the_host(&self) -> bool {
        use criu_driver::Error;
        match self {
            Self::Misfit(_) | Self::PidTaken { .. } => true,
            Self::Fallback { failure, .. } => failure.is_of_the_host(),
            Self::Criu(error) => matches!(
                error,
                Error::NotFound { .. } | Error::TooOld { .. } | Error::Unusable { .. } | Error::Spawn { .. }
            ),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_restore_says_where_the_log_is() {
        let cause =
            criu_driver::log::diagnose_text("Error (criu/cr-restore.c:1): Can't fork for 7: File exists\n");
        let failure = criu_driver::Error::Failed {
            operation: criu_driver::Operation::Restore,
            cause: cause.expect("it is a known cause"),
            errno: Some(17),
            log_path: Some("/tmp/x/restore.log".into()),
        };
        let hint = RestoreError::Criu(failure).hint().unwrap();
        assert!(hint.ends_with("; criu's log: /tmp/x/restore.log"), "{hint}");
        let failure = criu_driver::Error::Died {
            operation: criu_driver::Operation::Restore,
            status: None,
            cause: None,
        };
        assert!(!RestoreError::Criu(failure).hint().unwrap().contains("log:"));
    }

    #[test]
    fn who_has_a_pid_is_known_through_a_fallback_and_told() {
        let image = Image::pretend("/img".as_ref(), crate::image::manifest::tests::manifest());
        let taken = RestoreError::pid_taken(&image, "making process 7: File exists".to_owned());
        let hint = taken.hint().unwrap();
        assert!(hint.contains("--pid-namespace always"), "{hint}");
        let failure = RestoreError::Fallback { reason: "so".to_owned(), failure: Box::new(taken) };
        let text = failure.to_string();
        assert!(failure.is_of_the_host() && text.contains(": making process 7: File exists"), "{text}");
        assert!(failure.taker().is_some_and(|taker| text.starts_with(&taker.what)), "{text}");
        assert!(RestoreError::NoParameters.taker().is_none());
    }
}
