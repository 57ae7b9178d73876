//! How many descriptors this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Why there cannot be that many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{needed} descriptors are needed, and the hard limit of this process is {hard}")]
pub struct TooFewDescriptors {
    /// How many are needed.
    pub needed: u64,
    /// The hard limit on open files.
    pub hard: u64,
}

impl TooFewDescriptors {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        format!(
            "ask for less, or raise the limit: `ulimit -Hn {0}` as root, LimitNOFILE={0} in a unit of systemd, \
             `--ulimit nofile={0}` of a container",
            self.needed
        )
    }
}

/// Sees to it that `needed` descriptors can be open at a time, by raising the soft limit where it is lower: to what is
/// needed and no further, since there are programs that look at every number up to it.
///
/// # Errors
/// The hard limit is lower; the limits are as they were then.
pub fn allow_descriptors(needed: u64) -> Result<(), TooFewDescriptors> {
    // None means no limit.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    let hard = maximum.unwrap_or(u64::MAX);
    let raised = Rlimit { current: Some(needed), maximum };
    if needed > hard || setrlimit(Resource::Nofile, raised).is_err() {
        return Err(TooFewDescriptors { needed, hard });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_allowed_already_changes_nothing() {
        let before = getrlimit(Resource::Nofile);
        allow_descriptors(3).unwrap();
        assert_eq!(getrlimit(Resource::Nofile), before);
    }

    #[test]
    fn the_limit_and_what_is_needed_are_told() {
        let Some(hard) = getrlimit(Resource::Nofile).maximum else { return };
        let error = allow_descriptors(hard + 1).unwrap_err();
        assert_eq!(error, TooFewDescriptors { needed: hard + 1, hard });
        assert!(error.hint().contains("ulimit -Hn"), "{}", error.hint());
    }
}
