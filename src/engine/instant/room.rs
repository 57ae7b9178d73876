//! Room for descriptors: the process may have had more than the limit that we are under, and everything that is for
//! the restore only lies above them.
//!
//! The limit in force is raised for this program; the process gets its own at the end.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::source::Source;
use super::support::Reasons;

/// Beside the files of the image: the pages, the program, the plan, the report, and what is on its way between two
/// numbers.
const OTHERS: u64 = 64;

/// Raises our limit of open files (RLIMIT_NOFILE) as far as needed, where `floor` is the first number that the
/// process will not use. A reason against when that is more than may be.
///
/// # Errors
/// The kernel's own.
pub(super) fn make(source: &Source, floor: i32, reasons: &mut Reasons) -> std::io::Result<()> {
    let files = source.files.entries().len() as u64;
    let needed = u64::from(floor.unsigned_abs()) + 2 * files + OTHERS;
    let limit = getrlimit(Resource::Nofile);
    let Some(raised) = raised(&limit, needed) else {
        let most = limit.maximum.unwrap_or(u64::MAX);
        reasons.add(format!("restoring its descriptors takes {needed}, and at most {most} may be open here"));
        return Ok(());
    };
    if raised != limit {
        setrlimit(Resource::Nofile, raised)?;
    }
    Ok(())
}

/// The limit with room for so many, unless that is beyond what it can be.
fn raised(limit: &Rlimit, needed: u64) -> Option<Rlimit> {
    if limit.maximum.is_some_and(|most| most < needed) {
        return None;
    }
    let current = limit.current.map(|current| current.max(needed));
    Some(Rlimit { current, ..*limit })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_where_needed_and_possible() {
        let limit = Rlimit { current: Some(256), maximum: Some(4096) };
        assert_eq!(raised(&limit, 200), Some(limit));
        assert_eq!(raised(&limit, 1000), Some(Rlimit { current: Some(1000), maximum: Some(4096) }));
        assert_eq!(raised(&limit, 5000), None);
        let none = Rlimit { current: None, maximum: None };
        assert_eq!(raised(&none, 5000), Some(none));
    }
}
