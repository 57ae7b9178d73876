//! The one-way dependencies of the design: an import that points upwards fails here.
//!
//! `cli → report → server, bench → supervise, control, adapters, startup → checkpoint, engine → resource, context,
//! wake, audit, image → sys`, `events` right above the contract, and `criu/` never sees `src/`.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a test says by a panic what is wrong")]

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src/`, from the bottom up. What stands in one line may import each other.
const LAYERS: &[&[&str]] = &[
    &["sys"],
    &["wake", "resource", "context", "audit", "image"],
    &["events"],
    &["engine", "checkpoint"],
    &["adapters", "control", "history", "supervise", "startup"],
    &["app"],
    &["server", "bench", "load", "sleepsort"],
    &["report"],
    &["cli"],
];

/// Pairs within a layer that must stay apart all the same: a resource never sees an engine, and so on.
const STRANGERS: &[(&str, &str)] = &[
    ("resource", "audit"),
    ("resource", "image"),
    ("resource", "context"),
    ("wake", "resource"),
    ("wake", "context"),
    ("context", "audit"),
    ("context", "image"),
    ("audit", "resource"),
    ("audit", "context"),
    ("audit", "wake"),
    ("audit", "image"),
    ("image", "resource"),
    ("image", "context"),
    ("image", "wake"),
    ("image", "audit"),
    ("events", "audit"),
    ("engine", "checkpoint"),
    ("adapters", "control"),
    ("adapters", "supervise"),
    ("adapters", "startup"),
    ("supervise", "adapters"),
    ("supervise", "control"),
    ("supervise", "startup"),
    ("control", "supervise"),
    ("control", "startup"),
    ("control", "history"),
    ("supervise", "history"),
    ("adapters", "history"),
    ("history", "adapters"),
    ("history", "supervise"),
    ("history", "startup"),
    ("server", "bench"),
    ("bench", "server"),
    ("load", "sleepsort"),
    ("sleepsort", "load"),
    ("load", "server"),
    ("load", "bench"),
    ("server", "load"),
    ("bench", "load"),
    ("report", "server"),
    ("report", "engine"),
    ("report", "supervise"),
];

/// Library code only, besides `lib.rs`, which may name everything.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|name| name == "tests") {
                // Unit tests of a module that has them in a file or folder of their own.
            } else if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "no sources in {}", folder.display());
    found
}

fn root() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}

/// The lines of a file that are code, up to the tests within it.
fn code(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]"));
    lines.filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
}

/// The top-level modules that a file imports or names by `crate::`.
fn imports(path: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for line in code(path) {
        for part in line.split("crate::").skip(1) {
            match part.strip_prefix('{') {
                // `use crate::{a::B, c};` on one line.
                Some(list) => names.extend(list.split(',').map(first_word)),
                None => names.push(first_word(part)),
            }
        }
    }
    names.retain(|name| !name.is_empty());
    let origin = |name: String| {
        let known = RE_EXPORTED.iter().find(|(exported, _)| *exported == name);
        known.map_or(name, |(_, module)| (*module).to_owned())
    };
    names.into_iter().map(origin).collect()
}

fn first_word(text: &str) -> String {
    text.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

/// What `lib.rs` re-exports, by the module that it is from.
const RE_EXPORTED: &[(&str, &str)] = &[
    ("App", "app"),
    ("Subject", "checkpoint"),
    ("Context", "context"),
    ("Registration", "context"),
    ("Blocking", "resource"),
    ("BlockingResource", "resource"),
    ("Cycle", "resource"),
    ("Resource", "resource"),
    ("Wake", "wake"),
    ("init", "startup"),
];

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn no_module_imports_upwards() {
    let source = root().join("src");
    let mut wrong = Vec::new();
    for path in sources(&source) {
        let relative = path.strip_prefix(&source).unwrap();
        let module = relative.iter().next().unwrap().to_str().unwrap().trim_end_matches(".rs");
        if ["lib", "bin", "examples"].contains(&module) {
            continue;
        }
        let own = layer(module).unwrap_or_else(|| panic!("{module} has no layer: add it to LAYERS"));
        for imported in imports(&path) {
            let Some(other) = layer(&imported) else {
                wrong.push(format!("{}: {imported} is no module of a layer", relative.display()));
                continue;
            };
            let apart = STRANGERS.contains(&(module, imported.as_str()));
            if other > own || apart {
                wrong.push(format!("{}: {module} imports {imported}", relative.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "imports that point the wrong way:\n{}", wrong.join("\n"));
}

#[test]
fn what_knows_criu_knows_nothing_of_defrost() {
    for path in sources(&root().join("criu")) {
        let text = code(&path).join("\n");
        assert!(!text.contains("defrost::"), "{} names the defrost library", path.display());
    }
    for name in ["driver", "images", "restorer"] {
        let manifest = fs::read_to_string(root().join("criu").join(name).join("Cargo.toml")).unwrap();
        let depends = manifest.lines().any(|line| line.starts_with("defrost"));
        assert!(!depends, "criu/{name} depends on defrost");
    }
}

#[test]
fn unsafe_code_is_in_sys_only() {
    for path in sources(&root().join("src")) {
        if path.starts_with(root().join("src/sys")) {
            continue;
        }
        for line in code(&path) {
            let word = line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
            assert!(!word, "{}: {line}", path.display());
        }
    }
}

#[test]
fn only_the_command_prints() {
    for path in sources(&root().join("src")) {
        let may =
            ["src/cli", "src/examples", "src/bin"].iter().any(|folder| path.starts_with(root().join(folder)));
        for line in code(&path).iter().filter(|_| !may) {
            let prints = ["println!(", "print!(", "dbg!("].iter().any(|word| line.contains(word));
            assert!(!prints, "{} prints: {line}", path.display());
        }
    }
}

#[test]
fn bincode_is_behind_one_module() {
    for path in sources(&root().join("src")) {
        if path.ends_with("src/image/record.rs") {
            continue;
        }
        let names_it = code(&path).iter().any(|line| line.contains("bincode"));
        assert!(!names_it, "{} names bincode", path.display());
    }
}
