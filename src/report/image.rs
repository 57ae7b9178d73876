//! The page of one image.

use std::time::{Duration, UNIX_EPOCH};

use maud::{Markup, html};

use super::figure::Table;
use super::findings::Finding;
use super::memory::{self, Share};
use super::number::{as_f64, bytes, ms, of, percent};
use super::page::{Part, page};
use super::runs::{list, part};
use super::waterfall;
use crate::bench::record::Phase;
use crate::image::contents::Sum;
use crate::image::manifest::{Listen, Manifest, Need};
use crate::image::{Contents, Image, Users};

/// So many mappings are listed.
const LISTED: usize = 4000;

/// An image, and what was found out about it.
#[derive(Debug)]
pub struct ImagePage<'a> {
    /// The image.
    pub image: &'a Image,
    /// What its files hold.
    pub contents: Contents,
    /// Who needs it.
    pub users: Users,
    /// What speaks against restoring it here by mapping; or why that cannot be told.
    pub obstacles: Result<Vec<String>, String>,
}

/// The page.
#[must_use]
pub fn image(about: &ImagePage<'_>) -> String {
    let manifest = about.image.manifest();
    let subject = &manifest.subject;
    let lead = html! {
        p.lead {
            "The image " code { (about.image.path().display()) } " of the server " (subject.name) ", made on "
            (moment(manifest.created_unix_ns)) "."
        }
    };
    let phases = waterfall::nested(&phases(manifest));
    let parts = [
        part("findings", "Findings", list(&findings(about, &phases))),
        part("memory", "Memory", memory(about)),
        part("checkpoint", "Checkpoint", waterfall::checkpoint(&subject.name, &phases)),
        part("processes", "Processes and descriptors", processes(about)),
        part("around", "What it needs, and who needs it", around(about)),
        part("manifest", "Manifest", facts(about)),
    ];
    let parts: Vec<Part> = parts.into_iter().collect();
    page(&format!("Image of {}", subject.name), &lead, &parts)
}

/// The phases of the server and of the process that finished the folder, one after the other.
fn phases(manifest: &Manifest) -> Vec<Phase> {
    let mut began = 0.0;
    let follow = |phase: &crate::image::manifest::Phase| {
        let took = as_f64(phase.micros) / 1e3;
        let phase = Phase { name: phase.name.clone(), began, took };
        began += took;
        phase
    };
    manifest.subject.phases.iter().chain(&manifest.phases).map(follow).collect()
}

fn findings(about: &ImagePage<'_>, phases: &[Phase]) -> Vec<Finding> {
    let manifest = about.image.manifest();
    let files: u64 = manifest.files.iter().fold(0, |sum, file| sum.saturating_add(file.size));
    let mut all = vec![Finding::good(format!(
        "It has {} in {}; {} of that are pages of memory.",
        bytes(files),
        of(manifest.files.len(), "file"),
        bytes(manifest.present_bytes)
    ))];
    let kinds = about.contents.kinds();
    let largest = kinds.iter().map(|(kind, sum)| (sum.stored, kind)).max();
    if let Some((stored @ 1.., kind)) = largest {
        let share = percent(as_f64(stored) / as_f64(manifest.present_bytes.max(stored)));
        let text = format!("The largest part of it is \"{kind}\": {}, {share} of the pages.", bytes(stored));
        all.push(Finding::good(text));
    }
    match &about.obstacles {
        Ok(reasons) if reasons.is_empty() => {
            all.push(Finding::good(
                "It is restored here by mapping (the engine instant), or by criu.".to_owned(),
            ));
        }
        Ok(reasons) => {
            all.push(Finding::bad("It is restored here by criu, and not by mapping.".to_owned()));
            all.extend(reasons.iter().map(|reason| Finding::bad(format!("Against mapping: {reason}."))));
        }
        Err(error) => {
            all.push(Finding::bad(format!(
                "Whether it can be restored here by mapping cannot be told: {error}."
            )));
        }
    }
    if let Some(longest) = phases.iter().max_by(|one, other| one.took.total_cmp(&other.took)) {
        let whole = phases.iter().map(|phase| phase.began + phase.took).fold(0.0, f64::max);
        let (whole, took) = (ms(whole), ms(longest.took));
        all.push(Finding::good(format!(
            "Its checkpoint took {whole}, of which \"{}\" {took}.",
            longest.name
        )));
    }
    if !manifest.ancestors.is_empty() {
        let number = of(manifest.ancestors.len(), "earlier image");
        all.push(Finding::bad(format!("It depends on {number}, which must stay in place as they are.")));
    }
    all.extend(manifest.subject.overridden.iter().map(|what| Finding::bad(format!("Overridden: {what}."))));
    all
}

fn memory(about: &ImagePage<'_>) -> Markup {
    let name = &about.image.manifest().subject.name;
    let share = |(kind, sum): (&str, Sum)| Share {
        name: kind.to_owned(),
        stored: sum.stored,
        more: vec![bytes(sum.length), sum.mappings.to_string()],
    };
    let shares = about.contents.kinds().into_iter().map(share).collect();
    let head = ["address", "process", "length", "in the image", "access", "kind"];
    let mut table = Table::new(format!("Mappings of {name} by address"), &head);
    for mapping in about.contents.mappings.iter().take(LISTED) {
        table.line([
            format!("{:#x}", mapping.start),
            mapping.pid.to_string(),
            bytes(mapping.length),
            bytes(mapping.stored),
            access(mapping.prot),
            mapping.kind.clone(),
        ]);
    }
    let left = about.contents.mappings.len().saturating_sub(LISTED);
    html! {
        (memory::mappings(name, shares, &["mapped", "mappings"]))
        p.note {
            "What is mapped and not in the image is read from its file again, or is memory that was never touched."
            @if left > 0 { " The list leaves out the last " (left) " mappings." }
        }
        (table.folded("All mappings by address"))
    }
}

/// As /proc/PID/maps says it.
fn access(prot: u32) -> String {
    let bits = [(libc::PROT_READ, 'r'), (libc::PROT_WRITE, 'w'), (libc::PROT_EXEC, 'x')];
    bits.map(|(bit, letter)| if prot & bit.cast_unsigned() == 0 { '-' } else { letter }).iter().collect()
}

fn processes(about: &ImagePage<'_>) -> Markup {
    let mut table = Table::new("Processes", &["pid", "command", "parent", "session", "threads"]);
    for process in &about.image.manifest().processes {
        let numbers = [process.parent, process.session].map(|number| number.to_string());
        let words = [process.pid.to_string(), process.command.clone()];
        table.line(words.into_iter().chain(numbers).chain([process.threads.len().to_string()]));
    }
    let mut open = Table::new("Descriptors", &["descriptor", "process", "kind", "what"]);
    for descriptor in &about.contents.descriptors {
        let numbers = [descriptor.number, descriptor.pid].map(|number| number.to_string());
        open.line(numbers.into_iter().chain([descriptor.kind.clone(), descriptor.what.clone()]));
    }
    let mut resources = Table::new("Resources that the server registered", &["resource", "what it says"]);
    for resource in &about.image.manifest().subject.resources {
        resources.line([resource.name.clone(), resource.description.clone()]);
    }
    html! { (table.open()) (open.open()) (resources.open()) }
}

fn around(about: &ImagePage<'_>) -> Markup {
    let manifest = about.image.manifest();
    let mut needed = Table::new("Files that a restore opens again", &["file", "for", "size"]);
    for file in &manifest.needed {
        let need = match file.need {
            Need::Program => "program",
            Need::Mapped => "mapped",
            Need::Open => "open",
            Need::Folder => "folder",
        };
        let size = file.size.map_or_else(|| "any".to_owned(), bytes);
        needed.line([file.path.clone(), need.to_owned(), size]);
    }
    let mut addresses = Table::new("Addresses that are bound again", &["address", "of"]);
    let listens = manifest.subject.listens.iter().chain(&manifest.listeners);
    listens.for_each(|Listen { address, name, .. }| addresses.line([address.to_string(), name.clone()]));
    let mut others = Table::new("Images and processes", &["what", "how"]);
    for ancestor in &manifest.ancestors {
        let mapped = ancestor.files.iter().fold(0u64, |sum, file| sum.saturating_add(file.mapped_bytes));
        let path = ancestor.image.as_path().display().to_string();
        others.line([path, format!("it depends on {} of this image", bytes(mapped))]);
    }
    for image in &about.users.images {
        others.line([image.display().to_string(), "this image depends on it".to_owned()]);
    }
    for process in &about.users.processes {
        others.line([process.to_string(), "this process has memory of it".to_owned()]);
    }
    html! { (needed.open()) (addresses.open()) (others.open()) }
}

fn facts(about: &ImagePage<'_>) -> Markup {
    let manifest = about.image.manifest();
    let (subject, machine) = (&manifest.subject, &manifest.machine);
    let (major, minor, sublevel) = manifest.criu.version;
    let flags = manifest.criu.restore_flags.join(" ");
    let facts = [
        ("server", format!("{}, pid {}, generation {}", subject.name, subject.pid, subject.generation)),
        ("command", subject.argv.join(" ")),
        ("program", subject.exe.clone()),
        ("folder", subject.cwd.clone()),
        ("instance", subject.instance.clone()),
        ("made by", format!("defrost {}, CRIU {major}.{minor}.{sublevel}", manifest.defrost)),
        ("flags of criu restore", if flags.is_empty() { "none".to_owned() } else { flags }),
        ("host", format!("{}, {}", machine.hostname, machine.architecture)),
        ("kernel", machine.kernel.clone()),
        ("processor", format!("{} {}", machine.cpu_vendor, machine.cpu_model)),
    ];
    let mut files = Table::new("Files of the image", &["file", "size", "holds"]);
    for file in &manifest.files {
        let holds = if file.bulk { "pages of memory" } else { "" };
        files.line([file.name.clone(), bytes(file.size), holds.to_owned()]);
    }
    html! {
        dl { @for (name, value) in &facts { dt { (name) } dd { (value) } } }
        (files.folded("Files of the image"))
    }
}

fn moment(unix_ns: u64) -> String {
    let moment = UNIX_EPOCH.checked_add(Duration::from_nanos(unix_ns));
    moment.map(|moment| humantime::format_rfc3339_seconds(moment).to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::image::manifest::tests::manifest;

    #[test]
    fn names_of_an_image_are_text_whatever_they_are() {
        let mut manifest = manifest();
        let evil = "</style><script>alert(1)</script>&\"'";
        evil.clone_into(&mut manifest.subject.name);
        evil.clone_into(&mut manifest.needed[0].path);
        manifest.subject.overridden.push(evil.to_owned());
        let image = Image::pretend(Path::new("/srv/<b>"), manifest);
        let users = Users::of(image.path());
        let contents = Contents {
            descriptors: vec![crate::image::contents::Descriptor {
                pid: 1,
                number: 3,
                kind: "file".to_owned(),
                what: evil.to_owned(),
            }],
            ..Contents::default()
        };
        let page =
            super::image(&ImagePage { image: &image, contents, users, obstacles: Err(evil.to_owned()) });
        assert!(!page.contains("<script"), "{page}");
        assert!(!page.contains("<b>"), "{page}");
        assert_eq!(page.matches("</style>").count(), 1);
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;'"), "{page}");
    }
}
