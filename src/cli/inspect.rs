//! `defrost inspect`: what is in an image.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use super::failure::{FAILED, Failure, IMAGE};
use super::restore::open;
use crate::image::{Contents, Image, Users};
use crate::report::{self, ImagePage};

/// Show what is in an image: manifest, processes, memory, files
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The image folder
    dir: PathBuf,
    /// Print the whole manifest as JSON
    #[arg(long)]
    json: bool,
    /// Write a page with all of it, the memory by mapping, and the descriptors to this file
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    html: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let image = open(&arguments.dir)?;
    if let Some(file) = &arguments.html {
        return page(&image, file);
    }
    let text = if arguments.json {
        let json = serde_json::to_string_pretty(image.manifest());
        json.map_err(|error| Failure::plain(FAILED, error))? + "\n"
    } else {
        describe(&image).unwrap_or_default()
    };
    put!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// The image as a page. It is written when all of the image could be read, or else not at all.
fn page(image: &Image, file: &Path) -> Result<ExitCode, Failure> {
    let contents = Contents::read(image).map_err(|error| Failure::new(IMAGE, &error, Some(error.hint())))?;
    let users = Users::of(image.path());
    let obstacles = obstacles(image).map_err(|error| error.to_string());
    let page = report::image(&ImagePage { image, contents, users, obstacles });
    report::write(file, &page).map_err(|error| Failure::plain(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}

fn describe(image: &Image) -> Result<String, std::fmt::Error> {
    let manifest = image.manifest();
    let subject = &manifest.subject;
    let mut text = String::new();
    let out = &mut text;
    let created = SystemTime::UNIX_EPOCH + Duration::from_nanos(manifest.created_unix_ns);
    let age = SystemTime::now().duration_since(created).unwrap_or_default();
    writeln!(out, "image        {}", image.path().display())?;
    writeln!(out, "made         {} s ago by defrost {}", age.as_secs(), manifest.defrost)?;
    writeln!(out, "server       {}, pid {}, generation {}", subject.name, subject.pid, subject.generation)?;
    writeln!(out, "command      {}", subject.argv.join(" "))?;
    writeln!(out, "folder       {}", subject.cwd)?;
    let (major, minor, sublevel) = manifest.criu.version;
    writeln!(out, "criu         {major}.{minor}.{sublevel}")?;
    let flags = match manifest.criu.restore_flags.as_slice() {
        [] => "none".to_owned(),
        flags => flags.join(" "),
    };
    writeln!(out, "flags        {flags}")?;
    writeln!(out, "kernel       {}", manifest.machine.kernel)?;
    let files: u64 = manifest.files.iter().map(|file| file.size).sum();
    writeln!(
        out,
        "size         {} in {} files, {} of it memory",
        size(files),
        manifest.files.len(),
        size(manifest.present_bytes)
    )?;
    if !manifest.durable {
        writeln!(out, "lasts        until its host is started anew: the kernel was left to put it on disk")?;
    }
    against_instant(out, image)?;
    lists(out, image)?;
    Ok(text)
}

/// Whether the instant engine would restore the image here, and if not, all that speaks against it.
fn against_instant(out: &mut String, image: &Image) -> std::fmt::Result {
    writeln!(out, "restored here by")?;
    match obstacles(image) {
        Ok(reasons) if reasons.is_empty() => writeln!(out, "  instant, or criu"),
        Ok(reasons) => {
            writeln!(out, "  criu; not by instant:")?;
            reasons.iter().try_for_each(|reason| writeln!(out, "    {reason}"))
        }
        Err(error) => writeln!(out, "  criu; whether by instant cannot be told: {error}"),
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn obstacles(image: &Image) -> Result<Vec<String>, crate::engine::RestoreError> {
    use crate::engine::instant::{MemoryMode, obstacles};
    obstacles(image, MemoryMode::Auto, true)
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
#[expect(clippy::unnecessary_wraps, reason = "elsewhere there is an engine to ask")]
fn obstacles(_image: &Image) -> Result<Vec<String>, crate::engine::RestoreError> {
    Ok(vec!["it exists for x86-64 Linux only".to_owned()])
}

fn lists(out: &mut String, image: &Image) -> std::fmt::Result {
    let manifest = image.manifest();
    writeln!(out, "depends on")?;
    for ancestor in &manifest.ancestors {
        let mapped = ancestor.files.iter().map(|file| file.mapped_bytes).sum();
        writeln!(out, "  {} of image {}", size(mapped), ancestor.image.as_path().display())?;
    }
    writeln!(out, "needed by")?;
    let users = Users::of(image.path());
    for image in &users.images {
        writeln!(out, "  image {}", image.display())?;
    }
    for process in &users.processes {
        writeln!(out, "  {process}")?;
    }
    writeln!(out, "processes")?;
    for process in &manifest.processes {
        writeln!(out, "  {} with {} threads", process.pid, process.threads.len())?;
    }
    writeln!(out, "resources")?;
    for resource in &manifest.subject.resources {
        writeln!(out, "  {}  {}", resource.name, resource.description)?;
    }
    writeln!(out, "listens")?;
    for listen in manifest.subject.listens.iter().chain(&manifest.listeners) {
        writeln!(out, "  {}  {}", listen.address, listen.name)?;
    }
    writeln!(out, "needs")?;
    for file in &manifest.needed {
        writeln!(out, "  {}  {}", file.size.map(size).unwrap_or_default(), file.path)?;
    }
    writeln!(out, "phases")?;
    for phase in manifest.subject.phases.iter().chain(&manifest.phases) {
        writeln!(out, "  {} us  {}", phase.micros, phase.name)?;
    }
    Ok(())
}

#[expect(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
