use super::*;
use tempfile::TempDir;

struct Fakes(TempDir);

impl Fakes {
    fn new() -> Fakes {
        Fakes(TempDir::new().unwrap())
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A script that stands for CRIU.
    fn criu(&self, folder: &str, body: &str) -> PathBuf {
        let folder = self.folder(folder);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("criu");
        // Written by another process: one that forks meanwhile in this one would keep it open (ETXTBSY).
        let script = format!("#!/bin/sh\n{body}\n");
        let status = Command::new("sh")
            .args(["-c", r#"printf %s "$2" > "$1" && chmod 755 "$1""#, "sh"])
            .args([path.as_os_str(), script.as_ref()])
            .status()
            .unwrap();
        assert!(status.success());
        path
    }

    fn search(&self, path: &[&str]) -> Search {
        let folders = path.iter().map(|name| self.folder(name));
        Search {
            named: None,
            prefix: Some(self.folder("prefix")),
            path: Some(env::join_paths(folders).unwrap()),
            cache: VersionCache::in_one_of([self.folder("cache")]),
            limit: Duration::from_secs(10),
        }
    }
}

fn named(search: &Search, path: &Path) -> Result<Criu, Error> {
    Search { named: Some(path.to_owned()), ..search.clone() }.run()
}

#[test]
fn takes_the_prefix_before_the_path() {
    let fakes = Fakes::new();
    fakes.criu("a", "echo Version: 4.3");
    let expected = fakes.criu("prefix/criu/bin", "echo Version: 4.2.1");
    let found = fakes.search(&["a"]).run().unwrap();
    assert_eq!(found, Criu { path: expected, version: Version::parse("4.2.1").unwrap() });
}

#[test]
fn passes_by_what_does_not_work() {
    let fakes = Fakes::new();
    fakes.criu("prefix/criu/bin", "echo Version: 3.17.1");
    fakes.criu("a", "kill -SEGV $$");
    let expected = fakes.criu("b", "echo Version: 4.2");
    assert_eq!(fakes.search(&["none", "a", "b"]).run().unwrap().path, expected);
}

#[test]
fn names_all_that_do_not_work() {
    let fakes = Fakes::new();
    fakes.criu("old", "echo Version: 4.1.1");
    fakes.criu("crash", "kill -SEGV $$");
    fakes.criu("garbage", "echo hello");
    fs::create_dir_all(fakes.folder("folder/criu")).unwrap();
    let error = fakes.search(&["none", "old", "crash", "garbage", "folder"]).run().unwrap_err();
    let Error::NotFound { tried } = &error else { panic!("{error}") };
    let defects: Vec<String> = tried.iter().map(|candidate| candidate.defect.to_string()).collect();
    assert_eq!(defects[..2], ["no such file", "version 4.1.1 is older than 4.2"]);
    assert!(defects[2].starts_with("--version ended with signal: 11"), "{defects:?}");
    assert_eq!(defects[3..], ["--version printed no version", "not an executable file"]);
    assert!(error.to_string().contains("/prefix/criu/bin/criu (no such file), "), "{error}");
}

#[test]
fn what_is_named_is_not_replaced_in_silence() {
    let fakes = Fakes::new();
    fakes.criu("prefix/criu/bin", "echo Version: 4.2.1");
    let search = fakes.search(&[]);
    let old = fakes.criu("old", "echo Version: 3.17.1");
    assert!(matches!(named(&search, &old), Err(Error::TooOld { path, .. }) if path == old));
    let missing = fakes.folder("missing");
    let error = named(&search, &missing).unwrap_err();
    assert!(matches!(&error, Error::Unusable { defect: Defect::Missing, .. }), "{error}");
    assert!(error.hint().is_some());
}

#[test]
fn a_program_that_hangs_is_killed() {
    let fakes = Fakes::new();
    let path = fakes.criu("hang", "echo $$ > \"$0.pid\"; exec sleep 60");
    let search = Search { limit: Duration::from_millis(300), ..fakes.search(&[]) };
    let error = named(&search, &path).unwrap_err();
    assert!(matches!(&error, Error::Unusable { defect: Defect::Hung(_), .. }), "{error}");
    let pid = fs::read_to_string(fakes.folder("hang/criu.pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
}

#[test]
fn asks_once_for_each_state_of_the_file() {
    let fakes = Fakes::new();
    let path = fakes.criu("a", "echo x >> \"$0.asked\"; echo Version: 4.2");
    let asked = || fs::read_to_string(fakes.folder("a/criu.asked")).unwrap().lines().count();
    let search = fakes.search(&[]);
    for _ in 0..3 {
        named(&search, &path).unwrap();
    }
    assert_eq!(asked(), 1);
    fakes.criu("a", "echo x >> \"$0.asked\"; echo Version: 4.2.1");
    assert_eq!(named(&search, &path).unwrap().version.to_string(), "4.2.1");
    assert_eq!(asked(), 2);
    let without = Search { cache: None, ..search };
    named(&without, &path).unwrap();
    assert_eq!(asked(), 3);
}

#[test]
fn the_environment_of_the_caller_does_not_reach_criu() {
    let fakes = Fakes::new();
    let path =
        fakes.criu("a", "[ -z \"$CARGO_MANIFEST_DIR$HOME\" ] && [ -n \"$PATH\" ] && echo Version: 4.2");
    assert!(env::var_os("CARGO_MANIFEST_DIR").is_some());
    named(&fakes.search(&[]), &path).unwrap();
}
