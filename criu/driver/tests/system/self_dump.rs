//! A process that dumps itself. This program plays all parts: the requester, and the keeper of the worker, outside the tree
//! that is dumped.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::subject::{self, host, status};
use criu_driver::{
    Connection, Criu, DumpOptions, DumpTarget, ImagesFolder, RestoreOptions, Rpc, SelfDump, Transport,
    serve_self_dump, swrk_command,
};
use nix::sys::wait::WaitStatus;

const LIMIT: Duration = Duration::from_secs(20);

/// The folder in which a part is played.
const FOLDER: &str = "CRIU_DRIVER_TEST_FOLDER";

/// This program, for one of its parts.
fn part(name: &str, folder: &Path) -> Command {
    let mut command = Command::new("setsid");
    command.arg("--fork").arg(std::env::current_exe().unwrap()).args(["--exact", name]).env(FOLDER, folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn options() -> DumpOptions {
    DumpOptions::new(ImagesFolder::WorkingDirectory, DumpTarget::Requester)
}

#[test]
fn a_process_dumps_itself_and_learns_that_it_was_restored() {
    let Some(criu) = host() else { return };
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let images = folder.join("images");
    fs::create_dir(&images).unwrap();
    // Not by setsid: this process is to be its parent.
    let mut requester = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "self_dump::part_requester"])
        .env(FOLDER, folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = i32::try_from(requester.id()).unwrap();
    let ended = requester.wait().unwrap();
    let note = |name: &str| fs::read_to_string(folder.join(name));
    assert!(ended.signal().is_some(), "{ended:?}, {:?}", note("requester"));
    assert_eq!(wait_for(&folder.join("keeper")), "Ok(())");

    // The folder may be renamed: the image does not know its name.
    let renamed = folder.join("renamed");
    fs::rename(&images, &renamed).unwrap();
    let restored = Rpc::new(criu).restore(&RestoreOptions::new(renamed.as_path()), LIMIT).unwrap();
    assert_eq!(restored.pid, pid);
    let ended = status(restored.pid);
    let note = note("requester").unwrap();
    assert!(matches!(ended, WaitStatus::Exited(_, 9)), "{ended:?}, {note}");
    assert_eq!(note, "dumped, refused, died, restored");
}

/// What the keeper wrote; it may end a moment after the requester.
fn wait_for(path: &Path) -> String {
    for _ in 0..1000 {
        match fs::read_to_string(path) {
            Ok(text) if !text.is_empty() => return text,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
    panic!("{} does not come", path.display());
}

/// Not a test by itself: dumps itself with each possible outcome.
#[test]
fn part_requester() {
    let Some(folder) = folder() else { return };
    nix::unistd::setsid().unwrap();
    let criu = subject::daemonizing(&Criu::find(None).unwrap(), &folder);
    let images = folder.join("images");
    let mut notes = Vec::new();

    // With a worker that is started directly.
    let dump = |options: &DumpOptions| {
        let (connection, worker) = Connection::pair().unwrap();
        let mut command = swrk_command(&criu, worker, &images).unwrap();
        assert!(command.status().unwrap().success());
        drop(command);
        connection.self_dump(options, LIMIT)
    };
    let mut leave_running = options();
    leave_running.leave_running = true;
    notes.push(told(dump(&leave_running)));

    // CRIU refuses a connection of this process.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    notes.push(told(dump(&leave_running)));
    drop((client, listener));

    // A worker that ends without a word.
    let (connection, worker) = Connection::pair().unwrap();
    drop(worker);
    notes.push(told(connection.self_dump(&options(), LIMIT)));

    // With a keeper, which has the connection as its standard input; then this process is killed and restored.
    let (connection, worker) = Connection::pair().unwrap();
    assert!(part("self_dump::part_keeper", &folder).stdin(worker).status().unwrap().success());
    notes.push(told(connection.self_dump(&options(), LIMIT)));

    fs::write(folder.join("requester"), notes.join(", ")).unwrap();
    std::process::exit(9);
}

fn told(outcome: Result<SelfDump, criu_driver::Error>) -> String {
    match outcome {
        Ok(SelfDump::Dumped) => "dumped".into(),
        Ok(SelfDump::Restored) => "restored".into(),
        Ok(SelfDump::Refused { .. }) => "refused".into(),
        Err(criu_driver::Error::Died { .. }) => "died".into(),
        Err(error) => format!("{error:?}"),
    }
}

/// Not a test by itself: keeps the worker.
#[test]
fn part_keeper() {
    let Some(folder) = folder() else { return };
    let connection: OwnedFd = io::stdin().as_fd().try_clone_to_owned().unwrap();
    // Its other copy would hide the end of the worker from the requester.
    nix::unistd::dup2_stdin(fs::File::open("/dev/null").unwrap()).unwrap();
    let options = DumpOptions::new(folder.join("images"), DumpTarget::Requester);
    let outcome = serve_self_dump(&Criu::find(None).unwrap(), connection, &options, LIMIT);
    fs::write(folder.join("keeper"), format!("{outcome:?}")).unwrap();
}
