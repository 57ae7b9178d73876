//! Images that depend on others, and what keeps the others there.
//!
//! A process restored by mapping has its memory in the pages file of its image until it changes it. CRIU dumps such
//! a process with private mappings of that file, so the new image holds the changes only: it *depends* on the
//! earlier one, its *ancestor*.
//!
//! | module | what |
//! |---|---|
//! | [`ancestors`] | which images a fresh one depends on |
//! | [`dependents`] | which images depend on one: recorded in its folder, and looked for beside it |
//! | [`live`] | which processes have memory mapped from it |
//!
//! Nothing here changes an image; who removes or replaces one asks [`Users`] first. This module must not know how
//! an image is restored.

pub mod ancestors;
pub mod dependents;
pub mod live;

use std::fmt;
use std::path::{Path, PathBuf};

use super::open::Image;
use live::Mapper;

/// How many users a message names.
const NAMED: usize = 8;

/// Who needs an image to stay as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Images that depend on it.
    pub images: Vec<PathBuf>,
    /// Processes that have memory mapped from it.
    pub processes: Vec<Mapper>,
}

impl Users {
    /// Those of the image in this folder; none if there is no image. A folder that cannot be opened as an image has
    /// no identity that another one could name, so only processes are found then.
    #[must_use]
    pub fn of(folder: &Path) -> Self {
        let images = Image::open(folder).map(|image| dependents::of(&image)).unwrap_or_default();
        Self { images, processes: live::mappers(folder) }
    }

    /// Whether nobody needs it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.processes.is_empty()
    }

    /// What can be done about them, but for ending and removing them.
    #[must_use]
    pub fn hint(&self) -> String {
        match self.images.first() {
            Some(image) => {
                format!("make what depends on it whole first: defrost image flatten '{}'", image.display())
            }
            None if self.processes.iter().all(|process| process.pager) => {
                "wait until the restored process has all of its memory, which is when its pager ends"
                    .to_owned()
            }
            None => "end the process first: its next checkpoint needs the image".to_owned(),
        }
    }
}

/// In the words of a sentence's end: the first ones by name, and how many more.
impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let images = self.images.iter().map(|image| format!("image {}", image.display()));
        let processes = self.processes.iter().map(ToString::to_string);
        let mut words: Vec<String> = images.chain(processes).collect();
        let more = words.len().saturating_sub(NAMED);
        words.truncate(NAMED);
        f.write_str(&words.join(", "))?;
        if more > 0 { write!(f, " and {more} more") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_named_and_counted() {
        let processes = vec![Mapper { pid: 7, command: "shop --warm".into(), pager: false }];
        let users = Users { images: vec!["/srv/img1".into()], processes: processes.clone() };
        assert_eq!(users.to_string(), "image /srv/img1, process 7 (shop --warm)");
        assert!(users.hint().contains("defrost image flatten '/srv/img1'"));
        assert!(Users { images: Vec::new(), processes }.hint().contains("end the process"));
        let pager = Mapper { pid: 9, command: "defrost restore".into(), pager: true };
        assert!(Users { images: Vec::new(), processes: vec![pager] }.hint().contains("when its pager ends"));
        let many = Users { images: vec!["/i".into(); NAMED + 3], processes: Vec::new() };
        assert!(many.to_string().ends_with("image /i and 3 more"));
        let folder = tempfile::tempdir().unwrap();
        assert!(Users::of(folder.path()).is_empty() && Users::of("/no/such/folder".as_ref()).is_empty());
    }
}
