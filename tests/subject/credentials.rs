//! Threads with users, groups and capabilities of their own: both engines bring them back as they were.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};

use async_trait::async_trait;
use criu_images::{Credentials, ImageDir};
use defrost::image::Manifest;
use defrost::image::digest::Digest;
use defrost::image::manifest::MANIFEST_NAME;
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Wake};
use nix::unistd::{Uid, setfsuid};
use prost::Message;
use rustix::process::{DumpableBehavior, Signal, set_dumpable_behavior};
use rustix::thread::{self, CapabilitiesSecureBits, CapabilitySet, CapabilitySets};

use super::role::Role;
use super::stage::{Image, SOON, Stage};
use crate::support::client::answers_within;
use crate::support::host::Done;
use crate::support::process::lives;

const LEADER: &str = "leader";
const SCORE: &str = "/proc/self/oom_score_adj";
const LOGIN: &str = "/proc/self/loginuid";

/// What a thread does to itself.
type Change = fn(&Role);

/// The threads, by name.
const THREADS: [(&str, Change); 4] =
    [(LEADER, drop_all), ("files", for_files), ("ambient", keep_some), ("kept", keep_all)];

/// It stays root by name: CRIU without CAP_SYS_RESOURCE cannot read the limits of another user's process.
fn drop_all(role: &Role) {
    let groups = [7, 8].map(rustix::fs::Gid::from_raw);
    thread::set_thread_groups(&groups).unwrap();
    let none = CapabilitySet::empty();
    let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
    thread::set_capabilities(None, sets).unwrap();
    thread::set_no_new_privs(true).unwrap();
    if role.option("pdeath").is_some() {
        rustix::process::set_parent_process_death_signal(Some(Signal::TERM)).unwrap();
    }
    if role.option("dumpable").is_some() {
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
    }
}

fn for_files(_: &Role) {
    setfsuid(Uid::from_raw(65534));
}

fn keep_some(role: &Role) {
    let some = CapabilitySet::NET_BIND_SERVICE | CapabilitySet::SETPCAP;
    let sets = CapabilitySets { effective: some, permitted: some, inheritable: some };
    thread::set_capabilities(None, sets).unwrap();
    thread::configure_capability_in_ambient_set(CapabilitySet::NET_BIND_SERVICE, true).unwrap();
    thread::remove_capability_from_bounding_set(CapabilitySet::SYS_TIME).unwrap();
    let mut bits = CapabilitiesSecureBits::KEEP_CAPS;
    if role.option("settled").is_some() {
        bits |= CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE;
    }
    thread::set_capabilities_secure_bits(bits).unwrap();
}

fn keep_all(_: &Role) {
    thread::set_capabilities_secure_bits(CapabilitiesSecureBits::NO_SETUID_FIXUP).unwrap();
    become_user(1000);
}

/// The calling thread alone, unlike the C library's calls.
fn become_user(id: u32) {
    let (group, user) = (rustix::fs::Gid::from_raw(id), rustix::fs::Uid::from_raw(id));
    thread::set_thread_res_gid(group, group, group).unwrap();
    thread::set_thread_res_uid(user, user, user).unwrap();
}

/// What a thread says of itself that nobody else can see.
fn inner() -> String {
    let bits = thread::capabilities_secure_bits().unwrap();
    let signal = rustix::process::parent_process_death_signal().unwrap();
    let dumpable = rustix::process::dumpable_behavior();
    format!("{bits:?} {signal:?} {dumpable:?}")
}

/// A thread that answers.
struct Witness {
    name: &'static str,
    asked: Mutex<(Sender<()>, Receiver<String>)>,
}

impl Witness {
    fn ask(&self) -> String {
        let asked = self.asked.lock().unwrap();
        asked.0.send(()).unwrap();
        format!("{}: {}", self.name, asked.1.recv().unwrap())
    }
}

/// Its witnesses tell before and after.
struct Witnesses {
    role: Role,
    all: Vec<Witness>,
}

impl Witnesses {
    fn note(&self, word: &str) {
        let all: Vec<String> = self.all.iter().map(Witness::ask).collect();
        self.role.diary.note(word, all.join("; "));
    }
}

#[async_trait]
impl Resource for Witnesses {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        self.note("had");
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if wake.restored().is_some() {
            self.note("has");
        }
        Ok(())
    }
}

/// The leader and three threads become somebody else; the runtime lives in another thread, which stays root and makes
/// the checkpoint.
pub fn program(role: Role) {
    fs::write(SCORE, "200").unwrap();
    if let Some(login) = role.option("login") {
        fs::write(LOGIN, login).unwrap();
    }
    let mut all = Vec::new();
    let mut leader = None;
    // The leader is the last to change, so that what it says of the whole process stays.
    let turn = Arc::new(Barrier::new(THREADS.len()));
    for (name, change) in THREADS {
        let (ask, asked) = channel();
        let (answer, answered) = channel();
        all.push(Witness { name, asked: Mutex::new((ask, answered)) });
        let (role, turn) = (role.clone(), Arc::clone(&turn));
        let life = move || {
            if name == LEADER {
                turn.wait();
                change(&role);
            } else {
                change(&role);
                turn.wait();
            }
            for () in asked {
                answer.send(inner()).unwrap();
            }
        };
        if name == LEADER {
            leader = Some(life);
        } else {
            std::thread::Builder::new().name(name.to_owned()).spawn(life).unwrap();
        }
    }
    let witnesses = Witnesses { role: role.clone(), all };
    std::thread::spawn(move || {
        Role::run(async move {
            // All have changed by now.
            witnesses.note("first");
            let stand = role.open();
            stand.register("witnesses", witnesses);
            stand.serve().await;
        });
        std::process::exit(0);
    });
    leader.unwrap()();
}

/// What /proc tells of the process, and of each of the threads above.
fn portrait(pid: i32) -> BTreeMap<String, String> {
    let mut portrait = BTreeMap::new();
    for name in ["oom_score_adj", "loginuid"] {
        let text = fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
        portrait.insert(name.to_owned(), text);
    }
    let owner = fs::metadata(format!("/proc/{pid}/stat")).unwrap().uid();
    portrait.insert("owner of its files in /proc".to_owned(), owner.to_string());
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let task = task.unwrap();
        let leads = task.file_name().to_str().unwrap().parse() == Ok(pid);
        // A thread of the wake may end meanwhile.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let fields: BTreeMap<&str, &str> = status.lines().filter_map(|line| line.split_once(':')).collect();
        let name = if leads { LEADER } else { fields["Name"].trim() };
        if !THREADS.iter().any(|(known, _)| *known == name) {
            continue;
        }
        for key in ["Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"] {
            portrait.insert(format!("{key} of {name}"), fields[key].trim().to_owned());
        }
    }
    portrait
}

/// The credentials in an image, by thread.
fn credentials(image: &Image) -> Vec<(u32, Option<Credentials>)> {
    let folder = ImageDir::open(&image.path).unwrap();
    let process = folder.pstree().unwrap().remove(0);
    let named = |tid: u32| {
        let thread = folder.core(tid).unwrap().thread.unwrap();
        let name = String::from_utf8(thread.comm.clone().unwrap_or_default()).unwrap();
        let known = THREADS.iter().any(|(known, _)| *known == name.trim_end_matches('\0'));
        (known || tid == process.pid).then_some((tid, thread.credentials))
    };
    let found: Vec<_> = process.threads.iter().filter_map(|tid| named(*tid)).collect();
    assert_eq!(found.len(), THREADS.len());
    found
}

/// Makes the leader of an image somebody else, with everything that belongs to it.
fn give_leader_to(image: &Image, id: u32) {
    let pid = u32::try_from(image.pid).unwrap();
    let mut core = ImageDir::open(&image.path).unwrap().core(pid).unwrap();
    let own = core.thread.as_mut().unwrap().credentials.as_mut().unwrap();
    (own.uid, own.euid, own.suid, own.fsuid) = (id, id, id, id);
    (own.gid, own.egid, own.sgid, own.fsgid) = (id, id, id, id);
    let name = format!("core-{pid}.img");
    let old = fs::read(image.path.join(&name)).unwrap();
    let body = core.encode_to_vec();
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    let bytes = [&old[..8], &length, &body].concat();
    fs::write(image.path.join(&name), &bytes).unwrap();
    let path = image.path.join(MANIFEST_NAME);
    let mut manifest = Manifest::from_bytes(&fs::read(&path).unwrap()).unwrap();
    let file = manifest.files.iter_mut().find(|file| file.name == name).unwrap();
    (file.size, file.blake3) = (bytes.len() as u64, Digest::of(&bytes));
    fs::write(&path, manifest.to_bytes().unwrap()).unwrap();
}

pub fn threads_with_credentials_of_their_own(stage: &Stage) {
    // CRIU forbids ambient capabilities before it raises them, and then waits for ever.
    let cases = [
        (&["criu", "instant"][..], &["login=4711", "pdeath=1"][..]),
        (&["criu", "instant"], &["dumpable=1"]),
        (&["instant"], &["settled=1"]),
    ];
    for (engines, more) in cases {
        let actor = stage.start("credentials", more);
        let before = portrait(actor.pid);
        assert_eq!(before["CapPrm of leader"], "0000000000000000");
        assert_eq!(before["Uid of kept"], "1000\t1000\t1000\t1000");
        let image = actor.checkpoint(stage, "img");
        let had = stage.diary.texts("had").pop().unwrap();
        for engine in engines {
            let number = stage.diary.texts("restored").len() + 1;
            let (revived, _) = stage.restore(&image, &["--engine", engine], number);
            assert_eq!(portrait(revived.pid), before, "{engine}, {more:?}");
            assert_eq!(stage.diary.texts("has").pop().unwrap(), had, "{engine}, {more:?}");
            if *engine == "instant" {
                let again = stage.again(revived, image.port, "again");
                assert_eq!(credentials(&again), credentials(&image), "{more:?}");
            } else {
                revived.end();
            }
        }
        for path in ["img", "again"] {
            fs::remove_dir_all(stage.host.path(path)).unwrap();
        }
    }
}

/// As a whole: a server that has become an ordinary user.
pub fn a_process_of_another_user(stage: &Stage) {
    let image = stage.start("credentials", &["dumpable=1"]).checkpoint(stage, "img");
    give_leader_to(&image, 65534);
    let [criu, instant] = ["criu", "instant"].map(|engine| {
        let number = stage.diary.texts("restored").len() + 1;
        let (revived, _) = stage.restore(&image, &["--engine", engine], number);
        assert!(answers_within(image.port, SOON), "{engine}");
        let portrait = portrait(revived.pid);
        revived.end();
        portrait
    });
    assert_eq!(instant["Uid of leader"], "65534\t65534\t65534\t65534");
    assert_eq!(instant["owner of its files in /proc"], "65534", "it is dumpable");
    assert_eq!(instant, criu);
    let has = stage.diary.texts("has");
    assert_eq!(has[0], has[1]);
}

/// Whoever asked for a signal when its parent ends would get it at once.
pub fn a_parents_death_is_not_detached_from(stage: &Stage) {
    let image = stage.start("credentials", &["pdeath=1"]).checkpoint(stage, "img");
    let mut command = stage.restoring(&image, &["--engine", "instant", "--detach"]);
    let refused = Done::of(&mut command).failed(1);
    assert!(refused.contains("when its parent ends") && refused.contains("--engine criu"), "{refused}");
    assert!(!lives(image.pid));
}
