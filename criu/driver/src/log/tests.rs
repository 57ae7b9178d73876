use super::*;
use CauseKind as K;

/// The first line of every log of a CRIU without CAP_SYS_RESOURCE.
const HARMLESS: &str = "(00.000010) Error (criu/rlimit.c:24): rlimit: Can't setup RLIMIT_NOFILE for self: \
    Operation not permitted";

/// A log whose cause is among these lines.
fn log(lines: &[&str]) -> String {
    let steps = "(00.000020) Version: 4.2.1 (gitid 0)\n(00.000021) Running on host Linux 6.18";
    format!(
        "{HARMLESS}\n{steps}\n{}\n(00.123456) Error (criu/cr-dump.c:2098): Dumping FAILED.\n",
        lines.join("\n")
    )
}

fn found(lines: &[&str]) -> Diagnosis {
    diagnose_text(&log(lines)).unwrap()
}

#[test]
fn each_known_text_has_its_cause_and_a_remedy() {
    let cases = [
        (
            K::NotSessionLeader,
            "The root process 7 is not a session leader. Consider using --shell-job option",
        ),
        (K::NotSessionLeader, "A session leader of 7(7) is outside of its pid namespace"),
        (K::SessionMissing, "No task found with sid 12"),
        (K::Terminal, "tty: Found slave peer index 2 without correspond master peer"),
        (K::Terminal, "tty: Don't have tty to inherit session from, aborting"),
        (K::Terminal, "Deprecated functionality (TTY w/o regfile) rejected"),
        (K::FileSize, "File tmp/x.log has bad size 50 (expect 42)"),
        (K::FileMode, "File tmp/x has bad mode 0100600 (expect 0100644)"),
        (K::FileReplaced, "File usr/bin/x has bad build-ID"),
        (K::FileMissing, "Can't open file tmp/x on restore: No such file or directory"),
        (K::GhostTooBig, "Can't dump ghost file /tmp/x of 2097152 size, increase limit"),
        (K::LinkRemap, "Can't create link remap for /tmp/x. Use link-remap option."),
        (K::TcpInFlight, "In-flight connection (l) for 5"),
        (K::TcpConnected, "Connected TCP socket, consider using --tcp-established option."),
        (K::TcpConnected, "Connected TCP socket in image"),
        (K::TcpClose, "Need to set the --tcp-close options."),
        (K::TcpLock, "Failed to lock TCP connection 5"),
        (K::SocketOption, "sockets: Can't get 1:16 opt: Operation not supported"),
        (K::SocketProtocol, "Unsupported proto 262 for socket 5"),
        (K::UnixSocket, "External socket is used. Consider using --ext-unix-sk option."),
        (K::UnixSocket, "Can't dump half of stream unix connection: peer name"),
        (K::Vsock, "sockets: BUG! Unknown socket collected (family 40)"),
        (K::Bind, "inet: Can't bind inet socket (id 6): Address already in use"),
        (K::Bind, "inet: Can't bind inet socket (id 6): Cannot assign requested address"),
        (K::IoUring, "Unknown shit 600 (anon_inode:[io_uring])"),
        (K::Userfaultfd, "Can't dump file 3 of that type [600] (anon anon_inode:[userfaultfd])"),
        (K::Descriptor, "Can't dump file 3 of that type [20600] (chr 10:200)"),
        (K::Descriptor, "send_fds failed (-22)"),
        (K::Inotify, "fsnotify: Can't dump that handle"),
        (K::FileLock, "Some file locks are hold by dumping tasks! You can try --file-locks to dump them."),
        (K::SysvShm, "Task 7 with SysVIPC shmem map @7f00 doesn't live in IPC ns"),
        (K::MountNamespace, "Can't lookup mount=27 for fd=-3 path=/usr/bin/x"),
        (K::UserNamespace, "One or more namespaces doesn't belong to the target user namespace"),
        (K::NoSuchProcess, "Unable to detach from 7: No such process"),
        (K::InsideTree, "The criu itself is within dumped tree."),
        (K::PidTaken, "Can't fork for 7: File exists"),
        (K::PidTaken, "Unable to create a thread: -17"),
        (K::ImagesFolder, "Can't open dir ./x: No such file or directory"),
        (K::ImageDamaged, "Read 88 bytes while 2326 expected from /img/core-7.img"),
        (
            K::Capabilities,
            "CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability: setcap x",
        ),
        (K::Capabilities, "Unable to drop capability 24: -1"),
        (K::KernelTooNew, "vdso: Unexpected rt vDSO area bounds"),
        (K::NoSpace, "Can't write page: No space left on device"),
    ];
    for (kind, text) in cases {
        let line = format!("(00.012345) Error (criu/some-file.c:123): {text}");
        let diagnosis = found(&[&line]);
        assert_eq!((diagnosis.kind, diagnosis.text.as_str()), (kind, text));
        assert_eq!(diagnosis.line, line);
        assert!(diagnosis.remedy.is_some_and(|remedy| !remedy.ends_with('.')), "{text}");
    }
}

#[test]
fn a_cause_is_chosen_over_what_follows_from_it() {
    let size = "(00.01)      7: Error (criu/files-reg.c:2340): File tmp/x has bad size 50 (expect 42)";
    let diagnosis = found(&[
        size,
        "(00.02)      7: Error (criu/files.c:1227): Unable to open fd=1 id=0x5",
        "(00.03) Error (criu/cr-restore.c:1447): 7 exited, status=1",
        "(00.04) Error (criu/cr-restore.c:2320): Restoring FAILED.",
    ]);
    assert_eq!((diagnosis.kind, diagnosis.line.as_str()), (K::FileSize, size));

    let diagnosis = found(&[
        "(00.01) Error (criu/proc_parse.c:116): Unknown shit 600 (anon_inode:[io_uring])",
        "(00.02) Error (criu/proc_parse.c:700): Can't open 7's mapfile link 7f0: No such device or address",
        "(00.03) Error (criu/proc_parse.c:9): Unable to detach from 7: No such process",
    ]);
    assert_eq!(diagnosis.kind, K::IoUring);
}

#[test]
fn a_tracer_is_found_in_a_warning() {
    let diagnosis = found(&[
        "(00.01) Warn  (compel/src/lib/infect.c:140): Unable to interrupt task: 7 (Operation not permitted)",
        "(00.02) Error (compel/src/lib/infect.c:418): Unable to detach from 7: No such process",
    ]);
    assert_eq!(diagnosis.kind, K::Traced);
    let alone = "(00.01) Warn  (criu/x.c:1): File tmp/x has bad size 1 (expect 2)";
    assert_eq!(diagnose_text(alone), None, "other warnings are no cause");
}

#[test]
fn an_unknown_error_is_chosen_over_known_consequences() {
    let diagnosis = found(&[
        "(00.01) Error (criu/new.c:1): new: Something that no table knows",
        "(00.02) Error (criu/cr-dump.c:1742): Dump files (pid: 7) failed with -1",
    ]);
    assert_eq!((diagnosis.kind, diagnosis.text.as_str()), (K::Unknown, "new: Something that no table knows"));
    assert_eq!(diagnosis.remedy, None);
    let diagnosis = found(&["(00.02) Error (criu/cr-dump.c:1742): Dump files (pid: 7) failed with -1"]);
    assert_eq!(diagnosis.text, "Dump files (pid: 7) failed with -1", "better than nothing");
}

#[test]
fn the_harmless_first_line_alone_is_no_cause() {
    assert_eq!(diagnose_text(&log(&[])), None);
    assert_eq!(diagnose_text(HARMLESS), None);
    assert_eq!(diagnose_text(""), None);
}

#[test]
fn early_messages_without_time_count() {
    let text = "Error (criu/util.c:1): CRIU needs to have the CAP_SYS_ADMIN or the CAP_CHECKPOINT_RESTORE capability: x";
    assert_eq!(diagnose_text(text).unwrap().kind, K::Capabilities);
}

#[test]
fn only_the_end_of_a_huge_log_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("restore.log");
    let step = "(00.5) pie: 7: preadv returned 0\n";
    let noise = step.repeat(2 * usize::try_from(LOG_LIMIT).unwrap() / step.len());
    let early = "(00.1) Error (criu/x.c:1): File a has bad size 1 (expect 2)\n";
    let late = "(09.1) Error (criu/x.c:1): Can't fork for 7: File exists\n";
    std::fs::write(&path, format!("{early}{noise}{late}")).unwrap();
    assert_eq!(diagnose(&path).unwrap().unwrap().kind, K::PidTaken);
    std::fs::write(&path, format!("{early}{noise}")).unwrap();
    assert_eq!(diagnose(&path).unwrap(), None);
    assert!(diagnose(&folder.path().join("none")).is_err());
}

#[test]
fn long_and_broken_lines_are_cut() {
    let line = format!("Error (criu/x.c:1): {}", "ä".repeat(2000));
    let diagnosis = diagnose_text(&line).unwrap();
    assert!(diagnosis.text.len() <= TEXT_LIMIT && diagnosis.line.len() <= TEXT_LIMIT);
    for broken in ["Error (", "Error (criu/x.c:1)", "Error (criu/x.c:1): ", "Warn  ("] {
        let _ = diagnose_text(broken);
    }
}

proptest::proptest! {
    #[test]
    fn any_text_is_survived(text in "(?s).{0,300}") {
        let _ = diagnose_text(&text);
        let _ = diagnose_text(&format!("Error (x): {text}"));
    }
}
