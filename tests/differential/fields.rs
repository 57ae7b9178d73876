//! Records as fields: a path and a value for each, taken from how a record shows itself for debugging. So no field
//! can be forgotten, and one that comes later is compared by itself.

use std::collections::BTreeMap;
use std::fmt::Debug;

/// Values by path.
pub type Fields = BTreeMap<String, String>;

/// Adds all fields of a record under `prefix`. Items of a list have their index as name; a list of plain values is
/// one field.
pub fn add(fields: &mut Fields, prefix: &str, record: &impl Debug) {
    let text = format!("{record:#?}");
    let mut path: Vec<Level> =
        vec![Level { name: prefix.to_owned(), list: false, items: 0, plain: Vec::new() }];
    for line in text.lines().map(str::trim) {
        let depth = path.len();
        let opens = line.ends_with(['{', '[', '(']);
        if ["}", "]", ")", "},", "],", "),"].contains(&line) {
            let level = path.remove(depth - 1);
            if !level.plain.is_empty() || (level.list && level.items == 0) {
                let name = joined(&path, &level.name);
                fields.insert(name, level.plain.join(" "));
            }
            continue;
        }
        let level = &mut path[depth - 1];
        let (name, value) = match line.split_once(": ") {
            Some((name, value)) if !level.list => (name.to_owned(), value),
            _ => (level.items.to_string(), line),
        };
        level.items += 1;
        if opens {
            // The outermost line, and `Some(` or the name of a structure, name nothing.
            let wraps = value.ends_with('(') || (!level.list && !line.contains(": "));
            let name = if wraps && !line.contains(": ") { String::new() } else { name };
            path.push(Level { name, list: value.ends_with('['), items: 0, plain: Vec::new() });
        } else if level.list {
            level.plain.push(value.trim_end_matches(',').to_owned());
        } else {
            let name = if line.contains(": ") { name } else { String::new() };
            fields.insert(joined(&path, &name), value.trim_end_matches(',').to_owned());
        }
    }
}

struct Level {
    name: String,
    list: bool,
    items: usize,
    plain: Vec<String>,
}

fn joined(path: &[Level], last: &str) -> String {
    let names = path.iter().map(|level| level.name.as_str()).chain([last]).filter(|name| !name.is_empty());
    names.collect::<Vec<_>>().join(".")
}
