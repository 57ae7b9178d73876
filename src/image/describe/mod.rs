//! Finding out what a fresh image is: its processes, files and needs, for the manifest.
//!
//! Runs once, outside the dumped tree, after the engine is done; whatever is wrong with the image is found
//! here, and not by the first restore. This module must not know how the image was made.

mod seams;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use criu_images::{Credentials, FileTable, ImageDir, Process, ReadError, RegularFile};
use thiserror::Error;

use super::chain::ancestors;
use super::digest::Digest;
use super::elf::build_id;
use super::living::{self, is_alive};
use super::machine::Machine;
use super::manifest::{
    Capabilities, Clock, CriuRecord, ImageFile, ImageId, Listen, MANIFEST, MANIFEST_NAME, Manifest, Need,
    NeededFile, Phase, ProcessRecord, Stamp, SubjectRecord,
};
use super::verify::check_ancestors;

/// Why an image could not be described. It is still there, and is not to be completed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DescribeError {
    /// The engine left something behind that cannot be restored.
    #[error("image is not whole: {}", findings.join("; "))]
    NotWhole {
        /// All that is wrong, with the name of the file.
        findings: Vec<String>,
    },
    /// One of the engine's files cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A system call failed.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// Its answer.
        source: io::Error,
    },
}

impl DescribeError {
    /// What the user can do about it, if that is not plain.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::NotWhole { .. } => {
                Some("make a new checkpoint; if it happens again, the log of the dump tells more".into())
            }
            Self::Read(error) => Some(error.hint().to_owned()),
            Self::Io { source, path, .. } if source.kind() == io::ErrorKind::NotFound => Some(format!(
                "keep '{}' in its place during a checkpoint: every restore opens it",
                path.display()
            )),
            Self::Io { .. } => None,
        }
    }
}

/// Describes the image in this folder, before it is completed. `phases` are those of the outside process so
/// far; those of this function are added.
///
/// # Errors
/// See [`DescribeError`].
pub fn describe(
    folder: &Path,
    subject: SubjectRecord,
    criu: CriuRecord,
    mut phases: Vec<Phase>,
) -> Result<Manifest, DescribeError> {
    let mut clock = Clock::start();
    let dir = ImageDir::open(folder)?;
    let report = criu_images::verify(&dir);
    if !report.is_ok() {
        let findings = report.findings.iter().map(ToString::to_string).collect();
        return Err(DescribeError::NotWhole { findings });
    }
    let table = dir.files()?;
    let tree = dir.pstree()?;
    clock.lap("check the image");
    let found = ancestors::find(&dir, &tree, &table)?;
    let changed = check_ancestors(&found.ancestors, found.depth, false);
    if !changed.is_empty() {
        return Err(DescribeError::NotWhole { findings: changed.iter().map(ToString::to_string).collect() });
    }
    clock.lap("look at earlier images");
    let files = hash_files(folder)?;
    clock.lap("hash the image");
    let needed = needed_files(&dir, &tree, &table, &found.paths)?;
    clock.lap("hash what it needs");
    let id = ImageId::fresh().map_err(|source| failed("name", folder, source))?;
    let machine = Machine::here().map_err(|source| failed("describe", Path::new("/proc"), source))?;
    let (processes, capabilities) = processes(&dir, &tree)?;
    clock.lap("describe the host");
    let seams = if subject.ledger.is_some() { seams::seams(&dir, &tree)? } else { Vec::new() };
    clock.lap("look for large blocks");
    phases.extend(clock.into_phases());
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Ok(Manifest {
        defrost: env!("CARGO_PKG_VERSION").to_owned(),
        format: MANIFEST.version,
        id,
        created_unix_ns: u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX),
        subject,
        durable: true,
        machine,
        criu,
        capabilities,
        processes,
        needed,
        ancestors: found.ancestors,
        depth: found.depth,
        listeners: listeners(&table),
        files,
        present_bytes: report.present_bytes,
        seams,
        phases,
    })
}

/// All files that a restore reads. Logs change, and statistics of a restore come later.
pub(super) fn hash_files(folder: &Path) -> Result<Vec<ImageFile>, DescribeError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(|source| failed("list", folder, source))? {
        let entry = entry.map_err(|source| failed("list", folder, source))?;
        let kind = entry.file_type().map_err(|source| failed("look at", &entry.path(), source))?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !kind.is_file() || name == MANIFEST_NAME || name == "stats-restore" || name.ends_with(".log") {
            continue;
        }
        let (blake3, size) = File::open(entry.path())
            .and_then(Digest::of_file)
            .map_err(|source| failed("hash", &entry.path(), source))?;
        let bulk = name.starts_with("pages-");
        files.push(ImageFile { name, size, blake3, bulk });
    }
    files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(files)
}

/// What a restore opens by path, each path once, for the most important of its uses. Pages files of ancestors are
/// recorded with these, unless a process has one open.
fn needed_files(
    dir: &ImageDir,
    tree: &[Process],
    table: &FileTable,
    of_ancestors: &BTreeSet<PathBuf>,
) -> Result<Vec<NeededFile>, DescribeError> {
    // Unlinked files come back from the image itself, or from a name that CRIU made; nobody has to keep them.
    let remapped: BTreeSet<u32> = dir.remaps()?.iter().map(|remap| remap.file_id).collect();
    let uses = uses(dir, tree, table)?;
    let mut needed: BTreeMap<&Path, (Need, &RegularFile)> = BTreeMap::new();
    for entry in table.entries() {
        let Some(file) = entry.regular.as_deref() else { continue };
        if remapped.contains(&file.id) || file.external == Some(true) || is_left_to_engines(file, tree) {
            continue;
        }
        let need = uses.get(&file.id).copied().unwrap_or(Need::Open);
        if need == Need::Mapped && of_ancestors.contains(file.path()) {
            continue;
        }
        let known = needed.entry(file.path()).or_insert((need, file));
        if rank(need) < rank(known.0) {
            known.0 = need;
        }
        // Of several openings of one file, the one whose size counts.
        if known.1.size.is_none() {
            known.1 = file;
        }
    }
    needed.into_iter().filter_map(|(path, (need, file))| look_at(path, need, file).transpose()).collect()
}

/// What cannot be compared beforehand: the process's own files in /proc, which are there when it is, and symbolic
/// links that are open as such, which a look at their path would follow.
fn is_left_to_engines(file: &RegularFile, tree: &[Process]) -> bool {
    let link = file.mode.is_some_and(|mode| mode & libc::S_IFMT == libc::S_IFLNK);
    link || tree.iter().any(|process| file.path().starts_with(format!("/proc/{}", process.pid)))
}

fn rank(need: Need) -> u8 {
    match need {
        Need::Program => 0,
        Need::Mapped => 1,
        Need::Open => 2,
        Need::Folder => 3,
    }
}

/// What file ids are used for, other than being open.
fn uses(dir: &ImageDir, tree: &[Process], table: &FileTable) -> Result<BTreeMap<u32, Need>, ReadError> {
    let mut uses = BTreeMap::new();
    for pid in living::pids(dir, tree)? {
        let fs = dir.fs(pid)?;
        uses.extend([(fs.cwd_id, Need::Folder), (fs.root_id, Need::Folder)]);
        let memory = dir.mm(pid)?;
        uses.extend(memory.mapped_files(table).map(|mapped| (mapped.file.id, Need::Mapped)));
        uses.insert(memory.exe_file_id, Need::Program);
    }
    Ok(uses)
}

/// The file as it is now. None for one whose path cannot be written down: it is left to CRIU's own check.
fn look_at(path: &Path, need: Need, file: &RegularFile) -> Result<Option<NeededFile>, DescribeError> {
    use std::os::unix::fs::MetadataExt;
    let Some(text) = path.to_str() else { return Ok(None) };
    let open = |source| failed("look at", path, source);
    let meta = fs::metadata(path).map_err(open)?;
    let mut needed = NeededFile {
        path: text.to_owned(),
        need: if meta.is_dir() { Need::Folder } else { need },
        size: file.size,
        mode: file.mode.unwrap_or(meta.mode()),
        stamp: Stamp::of(&meta),
        build_id: None,
        blake3: None,
    };
    if meta.is_file() && file.size.is_some() {
        let contents = File::open(path).map_err(open)?;
        needed.build_id = build_id(&contents);
        let (digest, _) = Digest::of_file(contents).map_err(|source| failed("hash", path, source))?;
        needed.blake3 = Some(digest);
    }
    Ok(Some(needed))
}

fn processes(dir: &ImageDir, tree: &[Process]) -> Result<(Vec<ProcessRecord>, Capabilities), ReadError> {
    let mut records = Vec::with_capacity(tree.len());
    let mut capabilities = None;
    for process in tree {
        let core = dir.core(process.pid)?;
        let credentials = core.thread.as_ref().and_then(|thread| thread.credentials.as_ref());
        capabilities = capabilities.or(credentials.map(sets));
        // CRIU makes up the thread ids of a process that is dead at the dump.
        let threads = if is_alive(&core) { process.threads.clone() } else { vec![process.pid] };
        let name = core.task.map(|task| task.comm).unwrap_or_default();
        records.push(ProcessRecord {
            pid: process.pid,
            parent: process.ppid,
            group: process.pgid,
            session: process.sid,
            threads,
            command: String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned(),
        });
    }
    Ok((records, capabilities.unwrap_or_default()))
}

fn sets(credentials: &Credentials) -> Capabilities {
    let set = |words: &[u32]| words.iter().rev().fold(0, |set, word| set << 32 | u64::from(*word));
    Capabilities {
        effective: set(&credentials.cap_eff),
        permitted: set(&credentials.cap_prm),
        inheritable: set(&credentials.cap_inh),
        bounding: set(&credentials.cap_bnd),
        ambient: set(&credentials.cap_amb),
    }
}

fn listeners(table: &FileTable) -> Vec<Listen> {
    let shares = |id| {
        let options = table.get(id).and_then(|entry| entry.inet.as_ref()).map(|socket| &socket.options);
        options.and_then(|options| options.reuse_port).unwrap_or(false)
    };
    let listen = |listener: criu_images::Listener| Listen {
        name: String::new(),
        address: listener.address,
        reuse_port: shares(listener.file_id),
    };
    table.listeners().map(listen).collect()
}

fn failed(action: &'static str, path: &Path, source: io::Error) -> DescribeError {
    DescribeError::Io { action, path: path.into(), source }
}
