//! What can be wrong with an image as a whole, in words, each with its remedy.

use std::fmt;

use crate::error::ReadError;
use crate::files::FileKind;
use crate::inventory::IMAGE_VERSION;
use crate::task::Machine;

/// One thing that is wrong with an image. `file` is a name inside the folder.
#[derive(Debug)]
#[non_exhaustive]
pub enum Finding {
    /// A file is missing or cannot be read.
    Unreadable(ReadError),
    /// The folder has a layout this crate does not read.
    Version {
        /// What the inventory says.
        found: u32,
    },
    /// Descriptor tables are stored by pid, as old CRIU did.
    DescriptorsByPid,
    /// There is no process in the image.
    NoProcess,
    /// A process tree that cannot be: a pid or tid of 0 or given twice, a parent that is not
    /// listed before its child, a process without its leader.
    Tree {
        /// The process.
        pid: u32,
        /// What cannot be.
        what: &'static str,
    },
    /// An image of another machine.
    Machine {
        /// The core file.
        file: String,
        /// The machine it is of; `None` if not known to this crate.
        image: Option<Machine>,
        /// The machine this program runs on.
        host: Machine,
    },
    /// A core file lacks registers, or what belongs to the process or thread.
    CorePart {
        /// The core file.
        file: String,
        /// What it lacks.
        part: &'static str,
    },
    /// A pages file is shorter or longer than its page map says. CRIU up to 4.2.1 does not look, and
    /// turns in circles for ever on a short one.
    PagesSize {
        /// The pages file.
        file: String,
        /// The page map.
        pagemap: String,
        /// Bytes by the page map.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Two page maps name the same pages file.
    PagesShared {
        /// The page map.
        file: String,
        /// The pages file.
        pages: String,
    },
    /// A page map gives a page twice.
    PagesTwice {
        /// The page map.
        file: String,
        /// Address of the page.
        address: u64,
    },
    /// A page map has pages where the process has no memory.
    PagesOutside {
        /// The page map.
        file: String,
        /// Address of the first such page.
        address: u64,
    },
    /// Mappings are empty, overlap or do not ascend.
    Mapping {
        /// The memory file.
        file: String,
        /// Where the mapping starts.
        start: u64,
    },
    /// Pages are in a parent image and there is none.
    NoParent {
        /// The page map.
        file: String,
    },
    /// Something refers to a file id that `files.img` does not have.
    NoSuchFile {
        /// The file with the reference.
        file: String,
        /// What refers to it, such as `descriptor 7`.
        user: String,
        /// The file id.
        id: u32,
    },
    /// A descriptor or reference takes a file for another kind than it is.
    WrongKind {
        /// The file with the reference.
        file: String,
        /// What refers to it.
        user: String,
        /// The file id.
        id: u32,
        /// Kind by the reference; `None` if not known to this crate.
        expected: Option<FileKind>,
        /// Kind by `files.img`; `None` if not known to this crate.
        found: Option<FileKind>,
    },
    /// A descriptor number is given twice in one table.
    DescriptorTwice {
        /// The descriptor table.
        file: String,
        /// The number.
        fd: u32,
    },
    /// A record of `files.img` that restores nothing.
    FileRecord {
        /// The file id.
        id: u32,
        /// What is wrong with it.
        what: &'static str,
    },
}

impl Finding {
    /// Name of the file that is wrong; the folder's inventory or tree for what concerns the whole.
    #[must_use]
    pub fn file(&self) -> &str {
        match self {
            Self::Unreadable(error) => error.file().unwrap_or("."),
            Self::Version { .. } | Self::DescriptorsByPid => "inventory.img",
            Self::NoProcess | Self::Tree { .. } => "pstree.img",
            Self::FileRecord { .. } => "files.img",
            Self::Machine { file, .. }
            | Self::CorePart { file, .. }
            | Self::PagesSize { file, .. }
            | Self::PagesShared { file, .. }
            | Self::PagesTwice { file, .. }
            | Self::PagesOutside { file, .. }
            | Self::Mapping { file, .. }
            | Self::NoParent { file }
            | Self::NoSuchFile { file, .. }
            | Self::WrongKind { file, .. }
            | Self::DescriptorTwice { file, .. } => file,
        }
    }

    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreadable(error) => error.hint(),
            Self::Version { .. } | Self::DescriptorsByPid => {
                "restore the image with the CRIU that made it, or make a new checkpoint"
            }
            Self::Machine { .. } => "restore on a machine of the kind the image was made on",
            Self::PagesSize { found, expected, .. } if found < expected => {
                "do not restore it: CRIU would hang; copy the folder again with all of its pages files"
            }
            Self::NoParent { .. } => "put the earlier image where the link `parent` leads",
            Self::PagesSize { .. } | Self::PagesShared { .. } => {
                "files of several checkpoints are mixed; copy the folder again into an empty one"
            }
            Self::NoProcess
            | Self::Tree { .. }
            | Self::CorePart { .. }
            | Self::PagesTwice { .. }
            | Self::PagesOutside { .. }
            | Self::Mapping { .. }
            | Self::NoSuchFile { .. }
            | Self::WrongKind { .. }
            | Self::DescriptorTwice { .. }
            | Self::FileRecord { .. } => {
                "the image is damaged; copy the folder again, or make a new checkpoint"
            }
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Unreadable(error) = self {
            return error.fmt(f);
        }
        write!(f, "{}: ", self.file())?;
        match self {
            Self::Unreadable(_) => Ok(()),
            Self::Version { found } => write!(f, "image version {found} where {IMAGE_VERSION} was expected"),
            Self::DescriptorsByPid => f.write_str("descriptor tables are stored by pid"),
            Self::NoProcess => f.write_str("no process in it"),
            Self::Tree { pid, what } => write!(f, "process {pid}: {what}"),
            Self::Machine { image, host, .. } => {
                write!(f, "for machine {}, this one is {host}", OrUnknown(image.as_ref()))
            }
            Self::CorePart { part, .. } => write!(f, "without {part}"),
            Self::PagesSize { pagemap, expected, found, .. } => {
                write!(f, "{found} bytes where {pagemap} needs {expected}")
            }
            Self::PagesShared { pages, .. } => write!(f, "names {pages}, as another page map does"),
            Self::PagesTwice { address, .. } => write!(f, "page {address:#x} is given twice"),
            Self::PagesOutside { address, .. } => write!(f, "page {address:#x} is in no mapping"),
            Self::Mapping { start, .. } => {
                write!(f, "mapping at {start:#x} is empty or does not follow the one before it")
            }
            Self::NoParent { .. } => f.write_str("some pages are in a parent image and there is none"),
            Self::NoSuchFile { user, id, .. } => write!(f, "{user}: no file {id:#x} in files.img"),
            Self::WrongKind { user, id, expected, found, .. } => {
                let (expected, found) = (OrUnknown(expected.as_ref()), OrUnknown(found.as_ref()));
                write!(f, "{user}: file {id:#x} is of kind {found}, {expected} was expected")
            }
            Self::DescriptorTwice { fd, .. } => write!(f, "descriptor {fd} is given twice"),
            Self::FileRecord { id, what } => write!(f, "file {id:#x}: {what}"),
        }
    }
}

struct OrUnknown<'a, T>(Option<&'a T>);

impl<T: fmt::Display> fmt::Display for OrUnknown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("unknown"),
        }
    }
}
