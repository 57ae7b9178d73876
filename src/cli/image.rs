//! `defrost image`: images that depend on each other: shown, made whole, removed.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use super::failure::{FAILED, Failure, IMAGE};
use super::inspect::size;
use super::restore::open;
use crate::image::verify::verify_ancestors;
use crate::image::{Image, RemoveError, Users, flatten, remove};

/// How long something may take before its progress is drawn.
const PATIENCE: Duration = Duration::from_secs(1);

/// Images, and how they depend on each other
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the images in a folder, what each depends on, and who needs it
    Ls(List),
    /// Remove an image, unless another image or a living process needs it
    Rm(Removal),
    /// Make an image whole, so that it depends on no other one any more
    Flatten(Flattening),
}

#[derive(Debug, clap::Args)]
struct List {
    /// A folder with images in it, or an image
    #[arg(default_value = ".")]
    dir: PathBuf,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Removal {
    /// The image folder
    dir: PathBuf,
    /// Remove it though others need it, or though it is damaged. What depends on it cannot be restored any more
    #[arg(long)]
    force: bool,
}

#[derive(Debug, clap::Args)]
struct Flattening {
    /// The image folder
    dir: PathBuf,
    /// Write the whole image here, and leave the other as it is. Otherwise it is replaced when the whole one is complete
    #[arg(long, value_name = "DIR")]
    to: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::Ls(list) => ls(list),
        Command::Rm(removal) => rm(removal),
        Command::Flatten(flattening) => make_whole(flattening),
    }
}

/// An image in the list.
#[derive(Debug, Serialize)]
struct Entry {
    image: String,
    id: String,
    server: String,
    generation: u64,
    created_unix_ns: u64,
    bytes: u64,
    depth: u32,
    depends_on: Vec<Dependence>,
    problems: Vec<String>,
    needed_by: Vec<String>,
    used_by: Vec<u32>,
    #[serde(skip)]
    users: Users,
}

#[derive(Debug, Serialize)]
struct Dependence {
    image: String,
    id: String,
    mapped_bytes: u64,
}

impl Entry {
    fn of(image: &Image) -> Self {
        let manifest = image.manifest();
        let users = Users::of(image.path());
        let depends_on = manifest.ancestors.iter().map(|ancestor| Dependence {
            image: ancestor.image.as_path().display().to_string(),
            id: ancestor.id.to_string(),
            mapped_bytes: ancestor.files.iter().map(|file| file.mapped_bytes).sum(),
        });
        Self {
            image: image.path().display().to_string(),
            id: manifest.id.to_string(),
            server: manifest.subject.name.clone(),
            generation: manifest.subject.generation,
            created_unix_ns: manifest.created_unix_ns,
            bytes: manifest.files.iter().map(|file| file.size).sum(),
            depth: manifest.depth,
            depends_on: depends_on.collect(),
            problems: verify_ancestors(image).iter().map(ToString::to_string).collect(),
            needed_by: users.images.iter().map(|image| image.display().to_string()).collect(),
            used_by: users.processes.iter().map(|process| process.pid).collect(),
            users,
        }
    }
}

fn ls(list: &List) -> Result<ExitCode, Failure> {
    let entries: Vec<Entry> = images(&list.dir)?.iter().map(Entry::of).collect();
    let text = if list.json {
        serde_json::to_string_pretty(&entries).map_err(|error| Failure::plain(FAILED, error))? + "\n"
    } else {
        describe(&entries).unwrap_or_default()
    };
    put!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// The image in this folder, or those in the folders in it, by name. What cannot be opened as one is left out.
fn images(dir: &Path) -> Result<Vec<Image>, Failure> {
    if let Ok(image) = Image::open(dir) {
        return Ok(vec![image]);
    }
    let entries = std::fs::read_dir(dir)
        .map_err(|error| Failure::plain(IMAGE, format!("{}: {error}", dir.display())))?;
    let mut images: Vec<Image> = entries.filter_map(|entry| Image::open(&entry.ok()?.path()).ok()).collect();
    images.sort_by(|one, other| one.path().cmp(other.path()));
    Ok(images)
}

fn describe(entries: &[Entry]) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for entry in entries {
        let Entry { image, server, generation, bytes, .. } = entry;
        writeln!(text, "{image}  {server}, generation {generation}, {}", size(*bytes))?;
        for ancestor in &entry.depends_on {
            writeln!(text, "  depends on {}, {} mapped", ancestor.image, size(ancestor.mapped_bytes))?;
        }
        for problem in &entry.problems {
            writeln!(text, "  problem: {problem}")?;
        }
        if !entry.users.is_empty() {
            writeln!(text, "  needed by {}", entry.users)?;
        }
    }
    Ok(text)
}

fn rm(removal: &Removal) -> Result<ExitCode, Failure> {
    let removed = remove(&removal.dir, removal.force).map_err(|error| {
        let status = if matches!(error, RemoveError::Image(_)) { IMAGE } else { FAILED };
        Failure::new(status, &error, error.hint())
    })?;
    say!("{} was removed", removed.display());
    Ok(ExitCode::SUCCESS)
}

fn make_whole(flattening: &Flattening) -> Result<ExitCode, Failure> {
    let image = open(&flattening.dir)?;
    let begun = Instant::now();
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template("copying {wide_bar} {bytes} of {total_bytes}, {eta} left")
    {
        bar.set_style(style);
    }
    let flattened = flatten(&image, flattening.to.as_deref(), &mut |done, total| {
        if bar.is_hidden() && begun.elapsed() > PATIENCE && io::stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    let whole = flattened.map_err(|error| {
        let status = if error.is_of_the_image() { IMAGE } else { FAILED };
        Failure::new(status, &error, error.hint())
    })?;
    say!("{} depends on no other image", whole.display());
    Ok(ExitCode::SUCCESS)
}
