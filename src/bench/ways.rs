//! The ways in which a service is to be started.
//!
//! It must not know how they are timed.

use std::path::Path;

use super::record::Kind;

/// What the shell has to read; anything else is started without one.
const SHELL: &[char] = &['|', '&', ';', '<', '>', '(', ')', '$', '`', '*', '?', '[', ']', '#', '~', '\n'];

/// How `defrost restore` leaves what it restored to itself: at once, or when it is ready.
const DETACH: &str = "--detach";
const WAIT_READY: &str = "--wait-ready";

/// The name of a cold start with nothing to warm: what a warm-up costs is counted from there.
pub const EMPTY: &str = "empty";

/// One way to start it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Unique in its service.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The command.
    pub command: Vec<String>,
    /// Whether the image is taken out of the page cache before each start.
    pub evicted: bool,
    /// Whether CRIU is to find its cache; nothing where CRIU has no part.
    pub kerndat: Option<bool>,
    /// How many processes one start brings up. More than one are asked where `--json` says that they listen.
    pub clones: u32,
}

/// What restores an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restorer {
    /// `criu restore`, bare.
    Criu,
    /// `defrost restore --engine criu`
    DefrostCriu,
    /// By mapping the image.
    Map,
    /// By filling memory on demand.
    Fault,
    /// By copying.
    Copy,
    /// By mapping, with the working set that was recorded beside the image.
    MapRecorded,
    /// On demand, with that working set.
    FaultRecorded,
}

impl Restorer {
    /// All, in the order of a round.
    pub const ALL: [Self; 7] = [
        Self::Criu,
        Self::DefrostCriu,
        Self::Map,
        Self::Fault,
        Self::Copy,
        Self::MapRecorded,
        Self::FaultRecorded,
    ];

    /// As the record calls it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Criu => "criu",
            Self::DefrostCriu => "defrost criu",
            Self::Map => "defrost map",
            Self::Fault => "defrost fault",
            Self::Copy => "defrost copy",
            Self::MapRecorded => "defrost map, recorded",
            Self::FaultRecorded => "defrost fault, recorded",
        }
    }

    fn by_criu(self) -> bool {
        matches!(self, Self::Criu | Self::DefrostCriu)
    }

    /// Whether it needs a recorded working set.
    #[must_use]
    pub fn is_recorded(self) -> bool {
        matches!(self, Self::MapRecorded | Self::FaultRecorded)
    }

    /// Whether it restores several at once. CRIU alone cannot: all would have the same pids. A recorded working set says
    /// something of a first request only.
    #[must_use]
    pub fn can_clone(self) -> bool {
        self != Self::Criu && !self.is_recorded()
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Criu => &[],
            Self::DefrostCriu => &["--engine", "criu"],
            Self::Map => &["--engine", "instant", "--memory", "map", "--no-prefetch"],
            Self::Fault => &["--engine", "instant", "--memory", "fault", "--no-prefetch"],
            Self::Copy => &["--engine", "instant", "--memory", "copy", "--no-prefetch"],
            Self::MapRecorded => &["--engine", "instant", "--memory", "map"],
            Self::FaultRecorded => &["--engine", "instant", "--memory", "fault"],
        }
    }
}

/// What the restoring ways have in common.
#[derive(Debug, Clone)]
pub struct Restoring<'a> {
    /// The image.
    pub image: &'a Path,
    /// The `defrost` command.
    pub defrost: &'a Path,
    /// CRIU, if there is one.
    pub criu: Option<&'a Path>,
    /// Also with an image that is not in the page cache.
    pub evict: bool,
    /// Also without CRIU's cache.
    pub without_kerndat: bool,
    /// Whether what is restored says when it is ready; then it is waited for.
    pub reports: bool,
    /// Also as so many at once.
    pub clones: &'a [u32],
    /// Only these as several at once; all that can where it is empty.
    pub clone_ways: &'a [Restorer],
}

impl Restoring<'_> {
    /// All plans of one restorer. None of CRIU's where there is none.
    #[must_use]
    pub fn plans(&self, by: Restorer) -> Vec<Plan> {
        let Some(plain) = self.one(by) else { return Vec::new() };
        let mut plans = vec![plain.clone()];
        if self.evict {
            plans.push(Plan { name: format!("{}, evicted", plain.name), evicted: true, ..plain.clone() });
        }
        if self.without_kerndat && by.by_criu() {
            let name = format!("{}, no kerndat", plain.name);
            plans.push(Plan { name, kerndat: Some(false), ..plain.clone() });
        }
        let wanted = by.can_clone() && (self.clone_ways.is_empty() || self.clone_ways.contains(&by));
        for &clones in self.clones.iter().filter(|clones| wanted && **clones > 1) {
            let mut plan = Plan { name: format!("{}, {clones} clones", plain.name), clones, ..plain.clone() };
            plan.command.retain(|word| word != DETACH && word != WAIT_READY);
            plan.command.extend(["--clones", &clones.to_string(), WAIT_READY, "--json"].map(str::to_owned));
            plans.push(plan);
        }
        plans
    }

    fn one(&self, by: Restorer) -> Option<Plan> {
        let image = self.image.display().to_string();
        let criu = self.criu.map(|path| path.display().to_string());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let (kind, command) = if by == Restorer::Criu {
            (Kind::Criu, words(&[&criu?, "restore", "-d", "-v1", "-D", &image]))
        } else {
            let mut command = words(&[&self.defrost.display().to_string(), "restore"]);
            command.extend(words(&[if self.reports { WAIT_READY } else { DETACH }]));
            if by == Restorer::DefrostCriu {
                command.extend(words(&["--criu", &criu?]));
            }
            command.extend(words(by.arguments()));
            command.push(image);
            (Kind::Defrost, command)
        };
        let name = by.name().to_owned();
        Some(Plan { name, kind, command, evicted: false, kerndat: by.by_criu().then_some(true), clones: 1 })
    }
}

/// A command as it was typed, `NAME=CMD` or `CMD`. A name is in lower case and has no blank, so `FOO=1 ./server` has
/// none.
///
/// # Errors
/// That there is no command.
pub fn typed(text: &str, kind: Kind, default: &str) -> Result<Plan, String> {
    let (name, command) = match text.split_once('=') {
        Some((name, command)) if is_name(name) => (name, command),
        _ => (default, text),
    };
    let command = if command.contains(SHELL) {
        vec!["/bin/sh".to_owned(), "-c".to_owned(), command.to_owned()]
    } else {
        shlex::split(command).unwrap_or_default()
    };
    if command.is_empty() {
        return Err(format!("'{text}' has no command, or a quote without its end"));
    }
    Ok(Plan { name: name.to_owned(), kind, command, evicted: false, kerndat: None, clones: 1 })
}

fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    text.len() <= 60 && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_command_may_have_a_name() {
        let plan = |text| typed(text, Kind::Cold, "cold").unwrap();
        assert_eq!(plan("empty=./server --port 1").name, "empty");
        assert_eq!(plan("empty=./server --port 1").command, ["./server", "--port", "1"]);
        assert_eq!(plan("./server --port=1").name, "cold");
        assert_eq!(plan("./server --port=1").command, ["./server", "--port=1"]);
        assert_eq!(plan("./server 'a b'").command, ["./server", "a b"]);
        assert_eq!(plan("server key=value").command, ["server", "key=value"]);
        assert_eq!(plan("FOO=1 ./server > log").command, ["/bin/sh", "-c", "FOO=1 ./server > log"]);
        assert!(typed("x=", Kind::Cold, "cold").is_err());
        assert!(typed("server 'a", Kind::Cold, "cold").is_err());
    }

    #[test]
    fn each_restorer_has_its_command_and_a_name_of_its_own() {
        let restoring = Restoring {
            image: Path::new("/img"),
            defrost: Path::new("/bin/defrost"),
            criu: Some(Path::new("/bin/criu")),
            evict: true,
            without_kerndat: true,
            reports: true,
            clones: &[1, 4],
            clone_ways: &[],
        };
        let plans: Vec<Plan> = Restorer::ALL.into_iter().flat_map(|by| restoring.plans(by)).collect();
        let mut names: Vec<&str> = plans.iter().map(|plan| plan.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), plans.len());
        assert_eq!(plans[0].command, ["/bin/criu", "restore", "-d", "-v1", "-D", "/img"]);
        let by_criu = plans.iter().find(|plan| plan.name == "defrost criu").unwrap();
        assert_eq!(by_criu.command[..2], ["/bin/defrost", "restore"]);
        assert!(by_criu.command.windows(2).any(|pair| pair == ["--criu", "/bin/criu"]), "{by_criu:?}");
        let clones = plans.iter().find(|plan| plan.name == "defrost map, 4 clones").unwrap();
        assert!(clones.clones == 4 && clones.command.iter().any(|word| word == "--json"));
        let waits = |plan: &Plan| plan.command.iter().filter(|word| *word == WAIT_READY).count();
        assert!(waits(clones) == 1 && waits(by_criu) == 1);
        let mute = Restoring { reports: false, ..restoring.clone() };
        assert!(mute.plans(Restorer::Map)[0].command.iter().any(|word| word == DETACH));
        let some = Restoring { clone_ways: &[Restorer::Map, Restorer::Fault], ..restoring.clone() };
        let of_several =
            Restorer::ALL.into_iter().flat_map(|by| some.plans(by)).filter(|plan| plan.clones > 1);
        let names: Vec<String> = of_several.map(|plan| plan.name).collect();
        assert_eq!(names, ["defrost map, 4 clones", "defrost fault, 4 clones"]);
        let without = Restoring { criu: None, ..restoring };
        assert!(without.plans(Restorer::Criu).is_empty() && without.plans(Restorer::DefrostCriu).is_empty());
    }
}
