//! The memory of processes.

use super::record::Memory;

/// The memory of these processes together; those that are gone meanwhile count nothing.
#[must_use]
pub fn of(pids: &[i32], at: &str) -> Memory {
    let mut sum = Memory { at: at.to_owned(), processes: 0, rss: 0, pss: 0, anonymous: 0 };
    for pid in pids {
        // smaps_rollup since Linux 4.14: the lines of smaps, summed.
        let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) else { continue };
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kib: Option<u64> = line.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            kib.unwrap_or(0) << 10
        };
        sum.processes += 1;
        sum.rss += field("Rss");
        sum.pss += field("Pss");
        sum.anonymous += field("Anonymous");
    }
    sum
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_process_has_memory() {
        let found = super::of(&[std::process::id().cast_signed(), i32::MAX], "now");
        assert_eq!(found.processes, 1);
        assert!(found.rss >= found.pss && found.pss > 0 && found.anonymous > 0, "{found:?}");
    }
}
