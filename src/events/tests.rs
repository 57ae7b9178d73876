//! The file of events, through cycles, damage and several writers.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::stored::{Item, Once, Reader};
use super::*;
use crate::context::Context;
use crate::resource::Cycle;
use crate::wake::{InstanceId, Params, Restored, Wake};

struct Scene {
    _folder: tempfile::TempDir,
    path: PathBuf,
    context: Context,
    recorder: Recorder,
}

fn scene() -> Scene {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    Scene { _folder: folder, path, context: Context::new(), recorder: Recorder::default() }
}

impl Scene {
    fn open(&self) -> EventFile {
        EventFile::open(&self.context, &self.recorder, &self.path).unwrap()
    }

    fn record(&self, name: &'static str) {
        self.recorder.record(|| Draft::new(name));
    }

    /// What the file has, without what is there twice.
    fn names(&self) -> Vec<String> {
        names(&self.path)
    }
}

fn names(path: &Path) -> Vec<String> {
    let mut reader = Reader::new(fs::File::open(path).unwrap());
    let (mut once, mut names) = (Once::default(), Vec::new());
    while let Some(item) = reader.next_item().unwrap() {
        match item {
            Item::Event(event) if once.is_new(&event) => names.push(event.name.into_owned()),
            Item::Event(_) => {}
            Item::Loss(loss) => names.push(loss.to_string()),
        }
    }
    assert!(reader.torn().is_none());
    names
}

fn restored() -> Wake {
    let instance = InstanceId::from_bytes([9; 16]);
    Wake::Restored(Restored::new(1, std::time::Duration::ZERO, instance, Params::default()))
}

#[tokio::test]
async fn a_file_goes_through_cycles() {
    let scene = scene();
    scene.record("before it was opened");
    let file = scene.open();
    for wake in [Wake::Resumed, Wake::Aborted, restored()] {
        scene.record("before");
        let cycle = Cycle::new(true);
        assert!(scene.context.quiesce(&cycle).await.iter().all(|run| run.outcome.is_ok()));
        scene.record("meanwhile");
        file.flush();
        assert!(scene.names().last().unwrap() == "before");
        if wake.restored().is_some() {
            cycle.kept().iter().for_each(|slot| drop(slot.take()));
        }
        assert!(scene.context.wake(&wake).await.iter().all(|run| run.outcome.is_ok()));
        assert!(scene.names().last().unwrap() == "meanwhile");
    }
    scene.record("last");
    drop(file);
    let names = scene.names();
    assert_eq!(names.len(), 8, "{names:?}");
    assert_eq!(scene.recorder.counts().unwritten, 0);
}

#[tokio::test]
async fn it_is_written_without_being_asked() {
    let scene = scene();
    let _file = scene.open();
    scene.record("x");
    for _ in 0..2000 {
        if !scene.names().is_empty() {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("nothing was written");
}

#[tokio::test]
async fn a_torn_tail_is_cut_off_and_others_go_on() {
    let scene = scene();
    scene.record("whole");
    scene.record("torn");
    drop(scene.open());
    let length = fs::metadata(&scene.path).unwrap().len();
    OpenOptions::new().write(true).open(&scene.path).unwrap().set_len(length - 3).unwrap();
    let other = Recorder::default();
    let file = EventFile::open(&scene.context, &other, &scene.path).unwrap();
    other.set_origin(InstanceId::from_bytes([1; 16]), 0);
    other.record(|| Draft::new("next"));
    drop(file);
    assert_eq!(scene.names(), ["whole", "next"]);
}

#[tokio::test]
async fn two_write_to_one_file() {
    let scene = scene();
    let other = Recorder::default();
    other.set_origin(InstanceId::from_bytes([1; 16]), 0);
    let files = [scene.open(), EventFile::open(&scene.context, &other, &scene.path).unwrap()];
    for _ in 0..50 {
        scene.record("one");
        other.record(|| Draft::new("other"));
        files.iter().for_each(EventFile::flush);
    }
    let names = scene.names();
    assert_eq!(names.iter().filter(|name| *name == "one").count(), 50, "{names:?}");
    assert_eq!(names.len(), 100);
}

#[tokio::test]
async fn what_is_no_file_of_events_is_refused_untouched() {
    let scene = scene();
    for text in ["hello", "a text that is longer than the header of a record"] {
        fs::write(&scene.path, text).unwrap();
        let error = EventFile::open(&scene.context, &scene.recorder, &scene.path).unwrap_err();
        assert!(error.to_string().contains("cannot take further events"), "{error}");
        assert_eq!(fs::read_to_string(&scene.path).unwrap(), text);
    }
    let error = EventFile::open(&scene.context, &scene.recorder, "/dev/null").unwrap_err();
    assert_eq!(error.to_string(), "/dev/null: it is no regular file");
    let error = EventFile::open(&scene.context, &scene.recorder, "/nowhere/at/all").unwrap_err();
    assert_eq!(error.hint(), Some("create its folder"));
    assert!(scene.context.resources().is_empty());
}

#[tokio::test]
async fn what_the_ring_could_not_keep_is_counted_and_told() {
    let scene = scene();
    let small = Recorder::new(Limits { events: 4, ..Limits::default() });
    let file = EventFile::open(&scene.context, &small, &scene.path).unwrap();
    (0..10_u64).for_each(|n| small.record(|| Draft::new("n").with("n", n)));
    drop(file);
    assert_eq!(small.counts().unwritten, 6);
    assert_eq!(scene.names(), ["events.lost", "n", "n", "n", "n"]);
}

#[tokio::test]
async fn damage_costs_what_is_damaged() {
    let scene = scene();
    ["a", "b", "c"].into_iter().for_each(|name| scene.record(name));
    drop(scene.open());
    let mut bytes = fs::read(&scene.path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&scene.path, bytes).unwrap();
    scene.record("d");
    // A new file at the same place, which begins with all that the ring has.
    drop(scene.open());
    let names = scene.names();
    assert_eq!((names[0].as_str(), names[2].as_str()), ("a", "c"), "{names:?}");
    assert!(names[1].contains("are lost: record has checksum"), "{names:?}");
    OpenOptions::new().append(true).open(&scene.path).unwrap().write_all(b"defr").unwrap();
    drop(scene.open());
    assert_eq!(scene.names(), names, "the stray bytes are cut off");
}

#[tokio::test]
async fn rotation_is_followed_with_the_mode_of_the_old_file() {
    use std::os::unix::fs::PermissionsExt;
    let scene = scene();
    let file = scene.open();
    fs::set_permissions(&scene.path, fs::Permissions::from_mode(0o640)).unwrap();
    scene.record("old");
    file.flush();
    let old = scene.path.with_extension("1");
    fs::rename(&scene.path, &old).unwrap();
    scene.record("new");
    file.flush();
    assert_eq!((names(&old), scene.names()), (vec!["old".to_owned()], vec!["new".to_owned()]));
    assert_eq!(fs::metadata(&scene.path).unwrap().permissions().mode() & 0o777, 0o640);
    fs::remove_file(&scene.path).unwrap();
    scene.record("after it was removed");
    file.flush();
    assert_eq!(scene.names(), ["after it was removed"]);

    // What is no file of events is not written to, and nothing is lost.
    let moved = scene.path.with_extension("2");
    fs::rename(&scene.path, &moved).unwrap();
    fs::write(&scene.path, "somebody's text").unwrap();
    scene.record("to the old one");
    file.flush();
    assert_eq!(names(&moved), ["after it was removed", "to the old one"]);
    assert_eq!(fs::read_to_string(&scene.path).unwrap(), "somebody's text");
    assert_eq!(scene.recorder.counts().unwritten, 0);
}
