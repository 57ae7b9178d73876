//! Checkpoints that cannot be: each is refused by name and remedy, changes nothing, and is forgotten when its
//! obstacle is gone.

use std::any::Any;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Wake};
use nix::fcntl::{Flock, FlockArg, OFlag};

use super::role::Role;
use super::stage::{Actor, Stage};

/// A socket of the test's own, for a subject to connect to.
const PEER: &str = "peer.sock";

/// Puts an obstacle up when a first checkpoint is done, and takes it away when a second one has failed.
struct Moody {
    role: Role,
    obstacle: Mutex<Option<Box<dyn Any + Send>>>,
}

#[async_trait]
impl Resource for Moody {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        if self.obstacle.lock().unwrap().is_none() {
            return Ok(());
        }
        match self.role.option("obstacle") {
            Some("failing-hook") => Err("it rains".into()),
            Some("hanging-hook") => std::future::pending().await,
            Some("panicking-hook") => panic!("it pours"),
            _ => Ok(()),
        }
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let next = match wake {
            Wake::Resumed => {
                let (named, obstacle) = put_up(&self.role);
                self.role.diary.note("obstacle", named);
                Some(obstacle)
            }
            _ => None,
        };
        *self.obstacle.lock().unwrap() = next;
        Ok(())
    }

    fn deadline(&self) -> Duration {
        Duration::from_millis(500)
    }
}

/// The obstacle, and how it has to be named: several parts are separated by ` | `.
fn put_up(role: &Role) -> (String, Box<dyn Any + Send>) {
    match role.option("obstacle").unwrap() {
        "file" => {
            let path = role.path("open-file");
            (format!("file {}", path.display()), Box::new(File::create(path).unwrap()))
        }
        "connection" => {
            let database =
                TcpStream::connect(("127.0.0.1", u16::try_from(role.number("port").unwrap()).unwrap()))
                    .unwrap();
            let (own, peer) = (database.local_addr().unwrap(), database.peer_addr().unwrap());
            (format!("tcp connection {own} -> {peer}"), Box::new(database))
        }
        "listener" => {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            (format!("tcp listener {}", listener.local_addr().unwrap()), Box::new(listener))
        }
        "pipe" => {
            let child = Reaped::start(Stdio::piped());
            (format!("pipe:[ | shared with sleep (pid {}", child.0.id()), Box::new(child))
        }
        "child" => {
            let child = Reaped::start(Stdio::null());
            (format!("{} | sleep", child.0.id()), Box::new(child))
        }
        "unix" => {
            let stream = UnixStream::connect(role.path(PEER)).unwrap();
            (format!("unix stream | shared with | (pid {},", role.option("peer").unwrap()), Box::new(stream))
        }
        "terminal" => {
            let master = nix::pty::posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
            ("terminal".to_owned(), Box::new(master))
        }
        "lock" => {
            let file = File::create(role.path("lock-file")).unwrap();
            let lock =
                Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno).unwrap();
            ("lock | lock-file".to_owned(), Box::new(lock))
        }
        "io-uring" => match io_uring::IoUring::new(8) {
            Ok(ring) => ("io_uring".to_owned(), Box::new(ring)),
            Err(error) => (format!("unavailable: {error}"), Box::new(())),
        },
        // Hooks, and what the test does itself.
        _ => ("moody".to_owned(), Box::new(())),
    }
}

/// A child that is gone when it is dropped.
struct Reaped(Child);

impl Reaped {
    fn start(output: Stdio) -> Self {
        Self(Command::new("sleep").arg("1000").stdout(output).spawn().unwrap())
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub fn program(role: Role) {
    Role::run(async move {
        let stand = role.open();
        stand.register("moody", Moody { role, obstacle: Mutex::default() });
        stand.serve().await;
    });
}

/// Every file of a folder with its inode, size and time: what changes when anybody touches it.
fn state_of(folder: &Path) -> BTreeMap<String, (u64, u64, i64)> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let file = |entry: fs::DirEntry| {
        let found = entry.metadata().unwrap();
        (entry.file_name().to_string_lossy().into_owned(), (found.ino(), found.size(), found.mtime_nsec()))
    };
    entries.map(file).collect()
}

/// A checkpoint, then one with the obstacle in place, then one without it.
#[track_caller]
fn refuses(stage: &Stage, obstacle: &str, more: &[&str], hint: &str) {
    let option = format!("obstacle={obstacle}");
    let options: Vec<&str> = [option.as_str()].iter().chain(more).copied().collect();
    let actor = stage.start("refused", &options);
    let image = actor.checkpoint_running(stage, "img");
    let named = stage.diary.read("obstacle", 1);
    if let Some(reason) = named.strip_prefix("unavailable: ") {
        return crate::support::host::skip(obstacle, reason);
    }
    stays_as_it_was(stage, &actor, &named, hint);
    // The obstacle is gone with the failure.
    let again = actor.checkpoint(stage, "img");
    assert_eq!(image.path, again.path);
    let (revived, _) = stage.revive(&again, 1);
    assert!(crate::support::client::answers_within(again.port, super::stage::SOON));
    revived.end();
}

#[track_caller]
fn stays_as_it_was(stage: &Stage, actor: &Actor, named: &str, hint: &str) {
    let folder = stage.host.path("img");
    let before = state_of(&folder);
    let answer = actor.ask("checkpoint img");
    assert!(!answer.ok, "{answer:?}");
    actor.serves_soon();
    for part in named.split(" | ") {
        assert!(answer.text.contains(part), "`{part}` is not named in: {answer:?}");
    }
    assert!(answer.text.ends_with("; the server goes on"), "{answer:?}");
    assert!(answer.hint.as_ref().is_some_and(|text| text.contains(hint)), "no `{hint}` in: {answer:?}");
    assert_eq!(state_of(&folder), before, "the previous image must be untouched");
    assert_eq!(stage.partials(), [""; 0]);
    assert_eq!(stage.diary.texts("aborted").len(), 1, "every resource is told");
}

pub fn a_failing_hook(stage: &Stage) {
    refuses(stage, "failing-hook", &[], "mend what moody complains of");
    assert!(stage.diary.texts("quiesced").len() >= 3, "the other hooks run all the same");
}

pub fn a_hanging_hook(stage: &Stage) {
    refuses(stage, "hanging-hook", &[], "look at what moody waits for");
}

pub fn a_panicking_hook(stage: &Stage) {
    refuses(stage, "panicking-hook", &[], "mend what moody complains of");
}

pub fn an_unregistered_file(stage: &Stage) {
    refuses(stage, "file", &[], "register it as a data file or log file");
}

pub fn a_connection_to_a_database(stage: &Stage) {
    let database = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("port={}", database.local_addr().unwrap().port());
    refuses(stage, "connection", &[&port], "close the connection before the checkpoint");
}

pub fn a_second_listener(stage: &Stage) {
    refuses(stage, "listener", &[], "register the listener with the context");
}

pub fn a_pipe_to_a_child(stage: &Stage) {
    refuses(stage, "pipe", &[], "after a restore nobody is at its other end");
}

pub fn a_living_child(stage: &Stage) {
    refuses(stage, "child", &[], "end child processes in before_checkpoint");
}

pub fn a_unix_socket_of_another_process(stage: &Stage) {
    let listener = UnixListener::bind(stage.host.path(PEER)).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().unwrap());
    let peer = format!("peer={}", std::process::id());
    refuses(stage, "unix", &[&peer], "disconnect before the checkpoint");
    drop(accepting.join().unwrap());
}

pub fn a_terminal(stage: &Stage) {
    refuses(stage, "terminal", &[], "detach from the terminal");
}

pub fn a_file_lock(stage: &Stage) {
    refuses(stage, "lock", &[], "release the lock before the checkpoint");
}

pub fn an_io_uring(stage: &Stage) {
    refuses(stage, "io-uring", &[], "without io_uring");
}

/// The tracer is a thread of the test's: the kernel lets its tracees go when it ends.
pub fn a_traced_process(stage: &Stage) {
    let actor = stage.start("refused", &["obstacle=nothing"]);
    actor.checkpoint_running(stage, "img");
    let pid = nix::unistd::Pid::from_raw(actor.pid);
    let (seized, when_seized) = std::sync::mpsc::channel();
    let (done, when_done) = std::sync::mpsc::channel::<()>();
    let tracer = std::thread::spawn(move || {
        seized.send(nix::sys::ptrace::seize(pid, nix::sys::ptrace::Options::empty())).unwrap();
        let _ = when_done.recv();
    });
    when_seized.recv().unwrap().unwrap();
    stays_as_it_was(stage, &actor, "traced", "detach the debugger");
    drop(done);
    tracer.join().unwrap();
    actor.checkpoint(stage, "img");
}

/// What a checkpoint of one server may overwrite: an image, never something else.
pub fn a_target_that_is_no_image(stage: &Stage) {
    let precious = stage.host.path("precious");
    fs::create_dir(&precious).unwrap();
    File::create(precious.join("data")).unwrap().write_all(b"of value").unwrap();
    let actor = stage.start("refused", &["obstacle=nothing"]);
    let answer = actor.ask("checkpoint precious");
    assert!(!answer.ok && answer.text.contains("precious"), "{answer:?}");
    assert_eq!(stage.diary.texts("quiesced"), [""; 0], "nothing is disturbed for it");
    assert_eq!(fs::read(precious.join("data")).unwrap(), b"of value");
    actor.serves_soon();
    actor.stop();
}
