//! `DIR@N`: a checkpoint of a history, as a command names it.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::HistoryError;
use super::folder::History;

/// Which checkpoint of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The one of this number.
    Number(u64),
    /// The last is 1, the one before it 2.
    Back(u64),
}

/// A checkpoint of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The folder of the history.
    pub dir: PathBuf,
    /// Which of its checkpoints.
    pub which: Which,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Back(steps) => write!(f, "-{steps}"),
        }
    }
}

impl Spec {
    /// Reads `DIR@3` or `DIR@-1`. None if that is a path that exists, or has no `@` in its last part.
    ///
    /// # Errors
    /// [`HistoryError::Unparsable`] if what stands before the `@` is a history, and behind it no number.
    pub fn parse(path: &Path) -> Result<Option<Self>, HistoryError> {
        if path.exists() {
            return Ok(None);
        }
        let bytes = path.as_os_str().as_bytes();
        let Some(at) = bytes.iter().rposition(|byte| *byte == b'@') else { return Ok(None) };
        // What is no text is no number.
        let (dir, which) = (Path::new(OsStr::from_bytes(&bytes[..at])), str::from_utf8(&bytes[at + 1..]));
        let Some(which) = which.ok().filter(|which| !which.contains('/')) else { return Ok(None) };
        let digits =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        let which = match which.strip_prefix('-') {
            Some(steps) => digits(steps).filter(|steps| *steps > 0).map(Which::Back),
            None => digits(which).map(Which::Number),
        };
        match which {
            Some(which) => Ok(Some(Self { dir: dir.into(), which })),
            None if History::open(dir).is_ok() => {
                Err(HistoryError::Unparsable { text: path.display().to_string() })
            }
            None => Ok(None),
        }
    }

    /// The history, and the number of the checkpoint in it.
    ///
    /// # Errors
    /// Those of [`History::open`], and [`HistoryError::Unknown`], which says what there is.
    pub fn find(&self) -> Result<(History, u64), HistoryError> {
        let history = History::open(&self.dir)?;
        let numbers = history.numbers();
        let found = match self.which {
            Which::Number(number) => numbers.contains(&number).then_some(number),
            Which::Back(steps) => {
                let steps = usize::try_from(steps).unwrap_or(usize::MAX);
                numbers.len().checked_sub(steps).and_then(|at| numbers.get(at)).copied()
            }
        };
        found.map(|number| (history.clone(), number)).ok_or_else(|| history.unknown(self.which))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(String, Which)> {
        Spec::parse(Path::new(text)).unwrap().map(|spec| (spec.dir.display().to_string(), spec.which))
    }

    #[test]
    fn numbers_count_from_the_first_or_from_the_last() {
        assert_eq!(parsed("h@3"), Some(("h".into(), Which::Number(3))));
        assert_eq!(parsed("/a@b/h@-2"), Some(("/a@b/h".into(), Which::Back(2))));
        for other in ["h", "/a@3/h", "h@", "h@x", "h@-0", "h@--1", "h@+1", "h@1.5"] {
            assert_eq!(parsed(other), None, "{other}");
        }
        let raw = Spec::parse(Path::new(OsStr::from_bytes(b"\xff@-1"))).unwrap().unwrap();
        assert_eq!((raw.dir.as_os_str().as_bytes(), raw.which), (&b"\xff"[..], Which::Back(1)));
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("img@1");
        std::fs::create_dir(&there).unwrap();
        assert_eq!(Spec::parse(&there).unwrap(), None, "a folder of that name is meant");
    }

    #[test]
    fn behind_a_history_there_must_be_a_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("h");
        History::create(&path).unwrap();
        let spec = |end: &str| Spec::parse(Path::new(&format!("{}@{end}", path.display())));
        let error = spec("last").unwrap_err();
        assert!(matches!(error, HistoryError::Unparsable { .. }) && error.hint().is_some(), "{error}");
        let error = spec("99").unwrap().unwrap().find().unwrap_err();
        assert!(
            error.to_string().ends_with("@99 is not there: the history has no checkpoint yet"),
            "{error}"
        );
    }
}
