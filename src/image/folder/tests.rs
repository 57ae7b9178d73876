use std::os::unix::fs::{MetadataExt, symlink};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::image::INVENTORY_NAME;
use crate::image::manifest::tests::manifest;

fn root() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// An image as an engine would have left it, of a recognizable content.
fn image(folder: &Path, content: &str) {
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join(INVENTORY_NAME), content).unwrap();
    fs::write(folder.join("pages-1.img"), content).unwrap();
}

fn content(folder: &Path) -> String {
    fs::read_to_string(folder.join(INVENTORY_NAME)).unwrap()
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// One whole checkpoint; gives the final name.
fn checkpoint(target: &Path, content: &str) -> Result<PathBuf, FolderError> {
    let partial = Partial::create(target)?;
    image(partial.path(), content);
    partial.complete(&manifest())
}

#[test]
fn an_image_appears_whole_and_private() {
    let root = root();
    let target = root.path().join("img");
    let partial = Partial::create(&target).unwrap();
    image(partial.path(), "new");
    assert!(!target.exists());
    assert_eq!(fs::metadata(partial.path()).unwrap().mode() & 0o777, 0o700);

    assert_eq!(partial.complete(&manifest()).unwrap(), target.canonicalize().unwrap());
    assert_eq!(names(root.path()), ["img"]);
    assert_eq!(names(&target), [MANIFEST_NAME, INVENTORY_NAME, "pages-1.img"]);
    let bytes = fs::read(target.join(MANIFEST_NAME)).unwrap();
    assert_eq!(Manifest::from_bytes(&bytes).unwrap(), manifest());
    for name in names(&target) {
        assert_eq!(fs::metadata(target.join(&name)).unwrap().mode() & 0o777, 0o600, "{name}");
    }
}

#[test]
fn an_empty_folder_and_an_image_are_replaced() {
    let root = root();
    let target = root.path().join("img");
    fs::create_dir(&target).unwrap();
    checkpoint(&target, "first").unwrap();
    checkpoint(&target, "second").unwrap();
    assert_eq!((content(&target).as_str(), names(root.path())), ("second", vec!["img".to_owned()]));
}

#[test]
fn any_name_is_a_good_name() {
    let root = root();
    for name in ["with blanks", "ünïcode-雪", ".hidden", "-dash", "a.partial-1-x", &"n".repeat(200)] {
        let target = root.path().join(name);
        checkpoint(&target, "one").unwrap();
        checkpoint(&target, "two").unwrap();
        assert_eq!(content(&target), "two", "{name}");
    }
    assert_eq!(names(root.path()).len(), 6);
    let error = Partial::create(&root.path().join("n".repeat(201))).unwrap_err();
    assert!(matches!(error, FolderError::LongName { len: 201 }), "{error}");
}

#[test]
fn a_relative_target_counts_from_the_current_folder() {
    let partial = Partial::create(Path::new("target/../relative-img")).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(partial.target(), here.join("relative-img"));
    assert_eq!(partial.path().parent(), Some(here.as_path()));
    partial.discard(None).unwrap();
}

#[test]
fn links_are_followed_to_what_they_name() {
    let root = root();
    let real = root.path().join("real");
    fs::create_dir_all(real.join("img")).unwrap();
    symlink(&real, root.path().join("parent-link")).unwrap();
    symlink("real/img", root.path().join("img-link")).unwrap();
    symlink("nowhere", root.path().join("dangling")).unwrap();

    checkpoint(&root.path().join("parent-link/img"), "by parent").unwrap();
    assert_eq!(content(&real.join("img")), "by parent");
    checkpoint(&root.path().join("img-link"), "by name").unwrap();
    assert_eq!(content(&real.join("img")), "by name");
    assert!(fs::symlink_metadata(root.path().join("img-link")).unwrap().is_symlink());

    let error = Partial::create(&root.path().join("dangling")).unwrap_err();
    assert!(matches!(error, FolderError::Dangling { .. }), "{error}");
}

#[test]
fn what_is_no_place_for_an_image_is_refused_by_name() {
    let root = root();
    let foreign = root.path().join("foreign");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "").unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let open = root.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();

    let refused = |target: &str| Partial::create(&root.path().join(target)).unwrap_err();
    let error = refused("foreign");
    assert!(error.to_string().ends_with("foreign is not empty and holds no image"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("foreign/img")), "{:?}", error.hint());
    assert!(matches!(refused("file"), FolderError::NotFolder { .. }));
    assert!(matches!(refused("file/img"), FolderError::ParentNotFolder { .. }));
    let error = refused("missing/img");
    assert!(matches!(error, FolderError::ParentMissing { .. }));
    assert!(error.hint().is_some_and(|hint| hint.contains("mkdir -p")), "{:?}", error.hint());
    assert!(matches!(refused("open/img"), FolderError::ParentOpen { mode: 0o777, .. }));
    assert!(matches!(refused(".."), FolderError::NoName { .. }));
    assert!(matches!(Partial::create(Path::new("")).unwrap_err(), FolderError::NoName { .. }));
    assert!(matches!(Partial::create(Path::new("/")).unwrap_err(), FolderError::NoName { .. }));
    assert!(matches!(Partial::create(Path::new("/proc")).unwrap_err(), FolderError::MountPoint { .. }));

    fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
    Partial::create(&open.join("img")).unwrap().discard(None).unwrap();
    assert_eq!(names(root.path()), ["file", "foreign", "open"]);
}

#[test]
fn a_target_that_became_foreign_meanwhile_stays_as_it_is() {
    let root = root();
    let target = root.path().join("img");
    checkpoint(&target, "old").unwrap();
    let partial = Partial::create(&target).unwrap();
    image(partial.path(), "new");
    fs::remove_dir_all(&target).unwrap();
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis.txt"), "42").unwrap();

    let error = partial.complete(&manifest()).unwrap_err();
    assert!(matches!(error, FolderError::Foreign { .. }), "{error}");
    assert_eq!(names(&target), ["thesis.txt"]);
    partial.discard(None).unwrap();
    assert_eq!(names(root.path()), ["img"]);
}

#[test]
fn a_swap_that_brings_out_something_foreign_is_undone() {
    let root = root();
    let target = root.path().join("img");
    let partial = Partial::create(&target).unwrap();
    image(partial.path(), "new");
    fs::create_dir(&target).unwrap();
    fs::write(target.join("thesis.txt"), "42").unwrap();

    let error = partial.replace(&target, true).unwrap_err();
    assert!(matches!(&error, FolderError::Foreign { target: named } if *named == target), "{error}");
    assert_eq!((names(&target), content(partial.path()).as_str()), (vec!["thesis.txt".to_owned()], "new"));
}

#[test]
fn the_old_image_stays_when_completion_fails() {
    let root = root();
    let target = root.path().join("img");
    checkpoint(&target, "old").unwrap();
    let partial = Partial::create(&target).unwrap();
    image(partial.path(), "new");
    // A folder in the place of the manifest: it cannot be written, whoever we are.
    fs::create_dir(partial.path().join(MANIFEST_NAME)).unwrap();
    partial.complete(&manifest()).unwrap_err();
    assert_eq!(content(&target), "old");

    let mut huge = manifest();
    huge.subject.argv = vec!["x".repeat(crate::image::record::BODY_LIMIT)];
    assert!(matches!(partial.complete(&huge).unwrap_err(), FolderError::Manifest(_)));
    assert_eq!(content(&target), "old");
    partial.discard(None).unwrap();
    assert_eq!(names(root.path()), ["img"]);
}

#[test]
fn another_process_completes_what_one_began() {
    let root = root();
    let target = root.path().join("img");
    let begun = Partial::create(&target).unwrap();
    let path = begun.path().to_owned();
    drop(begun);
    assert!(path.is_dir());

    let partial = Partial::reopen(&path, &target).unwrap();
    image(partial.path(), "new");
    let error = Partial::reopen(&path, &target).unwrap_err();
    assert!(matches!(error, FolderError::InUse { .. }), "{error}");
    let error = Partial::reopen(&path, &root.path().join("other")).unwrap_err();
    assert!(matches!(error, FolderError::NotPartial { .. }), "{error}");
    let error = Partial::reopen(root.path(), &target).unwrap_err();
    assert!(matches!(error, FolderError::NotPartial { .. }), "{error}");
    partial.complete(&manifest()).unwrap();
    assert_eq!(content(&target), "new");
}

#[test]
fn a_discarded_folder_leaves_its_log() {
    let root = root();
    let target = root.path().join("img");
    let log = root.path().canonicalize().unwrap().join("img.dump-failed.log");
    for text in ["first", "second"] {
        let partial = Partial::create(&target).unwrap();
        image(partial.path(), "half");
        fs::write(partial.path().join("dump.log"), text).unwrap();
        fs::set_permissions(partial.path().join("dump.log"), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(partial.discard(Some("dump.log")).unwrap(), Some(log.clone()));
        assert_eq!(fs::read_to_string(&log).unwrap(), text);
        assert_eq!(fs::metadata(&log).unwrap().mode() & 0o777, 0o600);
    }
    assert_eq!(Partial::create(&target).unwrap().discard(Some("dump.log")).unwrap(), None);
    assert_eq!(names(root.path()), ["img.dump-failed.log"]);
}

#[test]
fn a_removed_image_is_gone_and_nothing_else_is_removed() {
    let root = root();
    let target = root.path().join("img");
    checkpoint(&target, "one").unwrap();
    symlink("img", root.path().join("link")).unwrap();
    assert_eq!(remove(&root.path().join("link")).unwrap(), root.path().canonicalize().unwrap().join("img"));
    assert_eq!(names(root.path()), ["link"]);
    assert!(matches!(remove(&target).unwrap_err(), FolderError::NoImage { .. }));
    fs::create_dir(&target).unwrap();
    assert!(matches!(remove(&target).unwrap_err(), FolderError::NoImage { .. }));
    fs::write(target.join("thesis.txt"), "42").unwrap();
    assert!(matches!(remove(&target).unwrap_err(), FolderError::Foreign { .. }));
    assert_eq!(names(&target), ["thesis.txt"]);
}

#[test]
fn leftovers_of_the_dead_are_swept_and_others_stay() {
    let root = root();
    let target = root.path().join("img");
    let mut dead = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    dead.wait().unwrap();
    let mut living = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let folder = |name: String| {
        fs::create_dir(root.path().join(&name)).unwrap();
        fs::write(root.path().join(&name).join("pages-1.img"), "half").unwrap();
        name
    };
    let swept = folder(format!(".img.partial-{}-abc123", dead.id()));
    let locked = folder(format!(".img.partial-{}-locked", dead.id()));
    let lock = File::open(root.path().join(&locked)).unwrap();
    let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock).unwrap();
    let used = folder(format!(".img.partial-{}-abc123", living.id()));
    let other = folder(format!(".img2.partial-{}-abc123", dead.id()));
    let odd = folder(format!(".img.partial-{}-..", dead.id()));

    let partial = Partial::create(&target).unwrap();
    let there = names(root.path());
    living.kill().unwrap();
    living.wait().unwrap();
    assert!(!there.contains(&swept), "{there:?}");
    for kept in [&locked, &used, &other, &odd] {
        assert!(there.contains(kept), "{kept} is gone from {there:?}");
    }
    drop(lock);
    partial.discard(None).unwrap();
}

#[test]
fn a_younger_process_with_the_creators_pid_does_not_protect_its_folder() {
    let root = root();
    let mut young = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
    let left = root.path().join(format!(".img.partial-{}-abc123", young.id()));
    fs::create_dir(&left).unwrap();
    let meta = fs::metadata(&left).unwrap();
    let now = stale::creator_lives(young.id(), std::time::SystemTime::now());
    let later =
        stale::creator_lives(young.id(), meta.created().unwrap() - std::time::Duration::from_secs(60));
    young.kill().unwrap();
    young.wait().unwrap();
    assert_eq!((now, later), (true, false));
}

/// What the killed process of the test below runs; nothing in an ordinary run of the tests.
#[test]
fn checkpoints_without_end() {
    let Some(target) = std::env::var_os(ENDLESS) else { return };
    for number in 0.. {
        checkpoint(Path::new(&target), &format!("{number:032}")).unwrap();
    }
}

const ENDLESS: &str = "DEFROST_TEST_CHECKPOINTS_WITHOUT_END";

#[test]
fn killed_at_any_moment_it_leaves_a_whole_image_or_none() {
    let root = root();
    let target = root.path().join("img");
    for round in 0..30 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "image::folder::tests::checkpoints_without_end"])
            .env(ENDLESS, &target)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10 + round * 7 % 40));
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself in round {round}");
        child.kill().unwrap();
        child.wait().unwrap();
        if target.exists() {
            assert_eq!(names(&target), [MANIFEST_NAME, INVENTORY_NAME, "pages-1.img"]);
            assert_eq!(content(&target), fs::read_to_string(target.join("pages-1.img")).unwrap());
            crate::image::Image::open(&target).unwrap();
        }
    }
    checkpoint(&target, "last").unwrap();
    assert_eq!((content(&target).as_str(), names(root.path())), ("last", vec!["img".to_owned()]));
}
