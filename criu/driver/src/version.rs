//! A CRIU version, as `criu --version` and the VERSION request tell it. Knows nothing of where CRIU is.

use std::fmt;

/// The oldest CRIU that this crate drives.
///
/// 3.17 dies at start on kernels from 6.13 on (it rejects the vDSO); 4.1.1 passes `criu check` on kernels from 6.16
/// on and yet cannot dump any TCP socket (`Can't get 1:16 opt`). Before 4.2 the RPC also lacks the first error's text.
pub const FLOOR: Version = Version { major: 4, minor: 2, sublevel: 0 };

/// A release number of CRIU. Ordered as releases are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number, 0 where a release has none.
    pub sublevel: u32,
}

impl Version {
    /// Reads `4.2.1`, `4.2`, or either with a suffix after a dash, such as `4.2-dirty`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        let number = text.trim().trim_start_matches('v').split('-').next()?;
        let mut parts = number.split('.').map(|part| part.parse::<u32>().ok());
        let version = Version {
            major: parts.next()??,
            minor: parts.next()??,
            sublevel: parts.next().unwrap_or(Some(0))?,
        };
        parts.next().is_none().then_some(version)
    }

    /// Finds the version in what `criu --version` prints, a line `Version: 4.2.1` among others.
    #[must_use]
    pub fn from_output(output: &str) -> Option<Version> {
        output.lines().find_map(|line| line.trim().strip_prefix("Version:")).and_then(Version::parse)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)?;
        if self.sublevel > 0 { write!(f, ".{}", self.sublevel) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn orders_and_prints_releases() {
        let old = Version::parse("4.1.1").unwrap();
        let new = Version::from_output("Version: 4.2.1\nGitID: v4.2.1\n").unwrap();
        assert!(old < FLOOR && FLOOR < new);
        assert_eq!(
            (old.to_string(), FLOOR.to_string(), new.to_string()),
            ("4.1.1".into(), "4.2".into(), "4.2.1".into())
        );
        assert_eq!(Version::parse("4.2-dirty"), Some(FLOOR));
    }

    #[test]
    fn refuses_what_is_no_version() {
        for text in ["", "4", "4.", "four.two", "4.2.1.9", "4.2.x", "99999999999.1"] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
        assert_eq!(Version::from_output("segmentation fault"), None);
    }

    proptest! {
        #[test]
        fn survives_any_text(text in ".{0,200}") {
            let _ = Version::from_output(&text);
        }

        #[test]
        fn reads_back_what_it_prints(major in 0u32..100, minor in 0u32..100, sublevel in 0u32..100) {
            let version = Version { major, minor, sublevel };
            prop_assert_eq!(Version::parse(&version.to_string()), Some(version));
        }
    }
}
