//! What /proc tells of a halted process: the kernel has state that no image holds, and the engine's process comes about
//! in another way than CRIU's.

use std::fs;
use std::ops::Range;

use super::fields::Fields;

/// Lines of /proc/PID/status that are about the past, the moment or the user, and not about the process.
const PASSING: [&str; 5] = ["Vm", "Rss", "SigQ", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
/// Files of /proc/PID of one value.
const FILES: [&str; 8] = [
    "cmdline",
    "environ",
    "limits",
    "coredump_filter",
    "oom_score_adj",
    "timerslack_ns",
    "cgroup",
    "setgroups",
];
/// Links of it.
const LINKS: [&str; 10] =
    ["exe", "cwd", "root", "ns/net", "ns/mnt", "ns/pid", "ns/ipc", "ns/uts", "ns/user", "ns/cgroup"];

/// Numbers of /proc/PID/stat that are about the process, by their index behind the name: group, session, terminal,
/// priority, niceness, code, stack, signal at the end, scheduling, data, heap, arguments, environment.
const STAT: [usize; 19] = [2, 3, 4, 15, 16, 23, 24, 25, 35, 37, 38, 42, 43, 44, 45, 46, 47, 48, 49];

/// Adds a field for each. Of the ledger nothing is told: see [`super::areas::Original`].
pub fn add(fields: &mut Fields, pid: i32, ledger: &Range<u64>) {
    let mut put = |name: String, value: String| fields.insert(format!("proc {name}"), value);
    for name in FILES {
        let text = fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        put(name.to_owned(), String::from_utf8_lossy(&text).into_owned());
    }
    for name in LINKS {
        put(name.to_owned(), format!("{:?}", fs::read_link(format!("/proc/{pid}/{name}")).ok()));
    }
    for (place, told) in mappings(pid, ledger) {
        put(format!("map {place}"), told);
    }
    for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let folder = entry.unwrap().path();
        let tid = folder.file_name().unwrap().to_string_lossy().into_owned();
        for line in fs::read_to_string(folder.join("status")).unwrap().lines() {
            let (name, value) = line.split_once(':').unwrap();
            if !PASSING.iter().any(|passing| name.starts_with(passing)) {
                put(format!("{tid} {name}"), value.trim().to_owned());
            }
        }
        let stat = fs::read_to_string(folder.join("stat")).unwrap();
        let numbers: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split_whitespace().collect();
        for index in STAT {
            put(format!("{tid} stat {index}"), numbers[index].to_owned());
        }
    }
}

/// Rights and flags of all memory. Which file is mapped is told by [`super::areas`].
fn mappings(pid: i32, ledger: &Range<u64>) -> Vec<(String, String)> {
    let mut found: Vec<(Range<u64>, String)> = Vec::new();
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut head = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[0].contains('-') {
            head = words;
        } else if words[0] == "VmFlags:" {
            let (start, end) = head[0].split_once('-').unwrap();
            let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).unwrap());
            // A piece has the mark of guards where there are some, and not the whole. What cannot be written needs no
            // account, and has one if it could be written when it was mapped.
            let writable = words.contains(&"wr");
            let kept = |flag: &&str| *flag != "gu" && (writable || *flag != "ac");
            let flags: Vec<&str> = words[1..].iter().copied().filter(kept).collect();
            let told = format!("{} {}", head[1], flags.join(" "));
            // Cut where the ledger begins and ends.
            let (first, last) = (ledger.start.clamp(start, end), ledger.end.clamp(start, end));
            let parts =
                [(start..first, told.as_str()), (first..last, "the ledger"), (last..end, told.as_str())];
            for (part, told) in parts {
                match found.last_mut() {
                    _ if part.is_empty() => {}
                    Some(last) if last.0.end == part.start && last.1 == told => last.0.end = part.end,
                    _ => found.push((part, told.to_owned())),
                }
            }
        }
    }
    let place = |(part, told): (Range<u64>, String)| match told.contains(" gd") {
        true => (format!("up to {:x}", part.end), told),
        false => (format!("{:x}-{:x}", part.start, part.end), told),
    };
    found.into_iter().map(place).collect()
}
