//! What is held open during a checkpoint, and what must be true of it in a restored process.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use defrost::checkpoint::Outcome;
use defrost::{Blocking, BlockingResource, Subject};

use crate::diary::Diary;
use crate::role::Role;

/// The images of the first and the second checkpoint.
pub const IMAGES: [&str; 2] = ["img", "img2"];

/// Panics with what is wrong.
type Check = Box<dyn FnOnce()>;

pub struct Scene {
    pub folder: PathBuf,
    diary: Diary,
    /// Whether it is checkpointed again in the first restored process.
    twice: bool,
    checks: Vec<(&'static str, Check)>,
}

impl Scene {
    pub fn new(role: &Role) -> Self {
        let twice = role.option("twice").is_some();
        Self { folder: role.folder.clone(), diary: role.diary.clone(), twice, checks: Vec::new() }
    }

    /// A folder on another file system, in memory. It is not there yet; the runner removes it.
    pub fn memory_folder(&self) -> PathBuf {
        memory_folder(&self.folder)
    }

    /// Adds something, with a check that owns it.
    pub fn add(&mut self, name: &'static str, check: impl FnOnce() + 'static) {
        self.checks.push((name, Box::new(check)));
    }

    /// Checkpoints this process, and checks everything in each restored one.
    pub fn checkpoint(self) {
        let subject = Subject::new("open").unwrap();
        subject.context().register("open", Arc::new(Blocking::new(Arc::new(Everything)))).forever();
        let before = portrait();
        let first_panic = Arc::new(Mutex::new(String::new()));
        let told = Arc::clone(&first_panic);
        for image in IMAGES.into_iter().take(if self.twice { 2 } else { 1 }) {
            let outcome = subject.checkpoint_restore_blocking(image);
            if let Err(error) = &outcome {
                self.diary.note("failed", format!("{error}; {:?}", error.hints()));
            }
            let Ok(Outcome::Restored { .. }) = outcome else { std::process::exit(1) };
        }
        std::panic::set_hook(Box::new(move |panic| *told.lock().unwrap() = panic.to_string()));
        let mut found = Vec::new();
        let mut checks = self.checks;
        checks.insert(0, ("flags", Box::new(move || compare(&before, &portrait()))));
        for (name, check) in checks {
            found.push(match catch_unwind(AssertUnwindSafe(check)) {
                Ok(()) => format!("{name} ok"),
                Err(_) => format!("WRONG {name}: {}", first_panic.lock().unwrap().replace('\n', " ")),
            });
        }
        self.diary.note("found", found.join("; "));
        std::process::exit(0);
    }
}

/// The folder in memory that belongs to a test's folder.
pub fn memory_folder(folder: &Path) -> PathBuf {
    Path::new("/dev/shm").join(folder.file_name().unwrap())
}

/// Answers for all descriptors.
struct Everything;

impl BlockingResource for Everything {
    fn claims(&self) -> Vec<RawFd> {
        numbers()
    }
}

fn numbers() -> Vec<RawFd> {
    let entries = fs::read_dir("/proc/self/fd").unwrap();
    entries.map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// What each descriptor is, its position and status flags, close-on-exec among them.
fn portrait() -> BTreeMap<RawFd, String> {
    let of = |number: RawFd| {
        let target = fs::read_link(format!("/proc/self/fd/{number}")).ok()?.display().to_string();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let lines = info.lines().filter(|line| ["pos:", "flags:"].iter().any(|key| line.starts_with(key)));
        // Sockets and pipes have new inodes.
        let nameless = target.ends_with(" (deleted)") && !target.starts_with("/memfd:");
        let kind = if nameless { "nameless" } else { target.split(":[").next().unwrap() };
        Some((number, format!("{kind} {}", lines.collect::<Vec<_>>().join(" ").replace('\t', " "))))
    };
    numbers().into_iter().filter_map(of).collect()
}

fn compare(before: &BTreeMap<RawFd, String>, now: &BTreeMap<RawFd, String>) {
    for (number, before) in before {
        let own = before.contains("/proc/") && before.contains("/fd");
        assert!(own || now.get(number) == Some(before), "{number}: {before}, now {:?}", now.get(number));
    }
}
