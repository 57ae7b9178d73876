//! One thing that speaks against a restore.

use std::fmt;

/// What kind of obstacle it is, and so whose turn it is to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// The image is not what was dumped: exit status 4.
    Damaged,
    /// The image and this host, or a file on it, do not go together: exit status 4.
    DoesNotFit,
    /// Something that will pass holds a pid or a port: exit status 3.
    Busy,
    /// The host lacks memory, privileges or a recent enough CRIU or kernel: exit status 3.
    Host,
}

impl Class {
    /// Whether another image is needed (or this one elsewhere), rather than a change on this host.
    #[must_use]
    pub fn is_of_the_image(self) -> bool {
        matches!(self, Self::Damaged | Self::DoesNotFit)
    }
}

/// One thing that speaks against a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What kind of obstacle.
    pub class: Class,
    /// What it is: subject first, then the cause.
    pub what: String,
    /// What the user can do about it.
    pub remedy: String,
}

impl Finding {
    pub(super) fn new(class: Class, what: String, remedy: String) -> Self {
        Self { class, what, remedy }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}
