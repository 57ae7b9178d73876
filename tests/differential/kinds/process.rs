//! What belongs to the process as a whole.

use std::fs;

use nix::sys::prctl;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::differential::play::Play;
use crate::differential::sys::{Region, call};

const PR_SET_THP_DISABLE: usize = 41;
const PR_GET_THP_DISABLE: usize = 42;

/// Mask for new files, working folder, name, and the program that it is.
pub fn surroundings(play: &mut Play) {
    let elsewhere = play.folder.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    std::env::set_current_dir(&elsewhere).unwrap();
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o137));
    prctl::set_name(c"a new name").unwrap();
    let program = fs::read_link("/proc/self/exe").unwrap();
    let arguments = fs::read("/proc/self/cmdline").unwrap();
    let environment = fs::read("/proc/self/environ").unwrap();
    let auxiliary = fs::read("/proc/self/auxv").unwrap();
    play.dump();
    play.same("working folder", std::env::current_dir().unwrap(), elsewhere);
    play.same("umask", rustix::process::umask(rustix::fs::Mode::empty()).as_raw_mode(), 0o137);
    play.same("name", prctl::get_name().unwrap().as_c_str(), c"a new name");
    play.same("program", fs::read_link("/proc/self/exe").unwrap(), program);
    play.same("arguments", fs::read("/proc/self/cmdline").unwrap(), arguments);
    play.same("environment", fs::read("/proc/self/environ").unwrap(), environment);
    play.same("auxiliary vector", fs::read("/proc/self/auxv").unwrap(), auxiliary);
}

/// Attributes that a process sets for itself. What CRIU makes of the personality is in the table of what is explained.
pub fn attributes(play: &mut Play) {
    const ADDR_NO_RANDOMIZE: usize = 0x004_0000;
    const GET: usize = 0xffff_ffff;
    call(libc::SYS_prctl, &[PR_SET_THP_DISABLE, 1, 0, 0, 0]).unwrap();
    let before = call(libc::SYS_personality, &[GET]).unwrap();
    call(libc::SYS_personality, &[before | ADDR_NO_RANDOMIZE]).unwrap();
    play.dump();
    play.same("huge pages are off", call(libc::SYS_prctl, &[PR_GET_THP_DISABLE, 0, 0, 0, 0]), Ok(1));
}

/// A process that writes no core, and that others may not look into.
pub fn not_dumpable(play: &mut Play) {
    prctl::set_dumpable(false).unwrap();
    play.dump();
    play.expect(!prctl::get_dumpable().unwrap(), "it is dumpable");
}

/// Limits below those that it was given.
pub fn limits(play: &mut Play) {
    let lower = [
        (Resource::RLIMIT_NOFILE, 500, 700),
        (Resource::RLIMIT_CORE, 0, 0),
        (Resource::RLIMIT_CPU, 10_000, 20_000),
        (Resource::RLIMIT_FSIZE, 1 << 40, 1 << 41),
        (Resource::RLIMIT_AS, 1 << 45, 1 << 46),
        (Resource::RLIMIT_STACK, 7 << 20, 1 << 30),
        (Resource::RLIMIT_SIGPENDING, 10, 20),
        (Resource::RLIMIT_MEMLOCK, 4096, 8192),
        (Resource::RLIMIT_DATA, 1 << 40, 1 << 41),
        (Resource::RLIMIT_NPROC, 20_000, 25_000),
    ];
    let mut set = Vec::new();
    for (resource, soft, hard) in lower {
        let ceiling = getrlimit(resource).unwrap().1;
        setrlimit(resource, soft.min(ceiling), hard.min(ceiling)).unwrap();
        set.push((resource, getrlimit(resource).unwrap()));
    }
    play.dump();
    for (resource, before) in set {
        play.same(format!("{resource:?}"), getrlimit(resource).unwrap(), before);
    }
}

/// Every registration for membarrier(2) that there is.
pub fn memory_barriers(play: &mut Play) {
    const GET_REGISTRATIONS: usize = 1 << 9;
    // Global, private, for core serialisation, for restartable sequences (linux/membarrier.h).
    for command in [1 << 2, 1 << 4, 1 << 6, 1 << 8] {
        let _ = call(libc::SYS_membarrier, &[command, 0, 0]);
    }
    let before = call(libc::SYS_membarrier, &[GET_REGISTRATIONS, 0, 0]);
    play.dump();
    play.same("registrations", call(libc::SYS_membarrier, &[GET_REGISTRATIONS, 0, 0]), before);
    play.same("a private barrier", call(libc::SYS_membarrier, &[1 << 3, 0, 0]), Ok(0));
}

/// A process that can never get privileges by executing a program.
pub fn no_new_privileges(play: &mut Play) {
    prctl::set_no_new_privs().unwrap();
    play.dump();
    play.expect(prctl::get_no_new_privs().unwrap(), "it may get privileges again");
}

/// Memory shared with children to come.
pub fn shared_memory(play: &mut Play) {
    let region = Region::map(
        300 * 4096,
        libc::PROT_READ | libc::PROT_WRITE,
        libc::MAP_SHARED | libc::MAP_ANONYMOUS,
        -1,
    );
    region.fill(1);
    play.dump();
    play.expect(region.holds(1), "shared memory has changed");
}
