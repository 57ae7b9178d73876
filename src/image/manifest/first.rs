//! The first format of a manifest, still read: frozen, so that today's types may grow.

use serde::Deserialize;

use super::{
    Capabilities, CriuRecord, ImageFile, ImageId, Listen, Manifest, NeededFile, Phase, ProcessRecord,
    ResourceRecord, SubjectRecord,
};
use crate::image::machine::Machine;
use crate::image::record::{self, Kind, RecordError};

/// Its magic and version.
pub(super) const FIRST: Kind = Kind { magic: super::MANIFEST.magic, version: 1 };

/// Reads it as today's. An image of that time has no id of its own, and lists pages files of earlier images among
/// the files that it needs.
pub(super) fn from_bytes(bytes: &[u8]) -> Result<Manifest, RecordError> {
    let first: First = record::decode(FIRST, bytes)?;
    Ok(Manifest {
        defrost: first.defrost,
        format: first.format,
        id: ImageId::of_manifest(bytes),
        created_unix_ns: first.created_unix_ns,
        subject: first.subject.into(),
        machine: first.machine,
        criu: first.criu,
        capabilities: first.capabilities,
        processes: first.processes,
        needed: first.needed,
        ancestors: Vec::new(),
        depth: 0,
        listeners: first.listeners,
        files: first.files,
        present_bytes: first.present_bytes,
        seams: Vec::new(),
        phases: first.phases,
    })
}

#[derive(Deserialize)]
struct First {
    defrost: String,
    format: u32,
    created_unix_ns: u64,
    subject: Subject,
    machine: Machine,
    criu: CriuRecord,
    capabilities: Capabilities,
    processes: Vec<ProcessRecord>,
    needed: Vec<NeededFile>,
    listeners: Vec<Listen>,
    files: Vec<ImageFile>,
    present_bytes: u64,
    phases: Vec<Phase>,
}

#[derive(Deserialize)]
struct Subject {
    name: String,
    pid: u32,
    argv: Vec<String>,
    exe: String,
    cwd: String,
    generation: u64,
    instance: String,
    session_started_unix_ns: u64,
    resources: Vec<ResourceRecord>,
    listens: Vec<Listen>,
    overridden: Vec<String>,
    parameter_pipe: Option<u64>,
    report_pipe: Option<u64>,
    leave_running: bool,
    phases: Vec<Phase>,
}

impl From<Subject> for SubjectRecord {
    fn from(first: Subject) -> Self {
        Self {
            name: first.name,
            pid: first.pid,
            argv: first.argv,
            exe: first.exe,
            cwd: first.cwd,
            generation: first.generation,
            instance: first.instance,
            session_started_unix_ns: first.session_started_unix_ns,
            resources: first.resources,
            listens: first.listens,
            overridden: first.overridden,
            parameter_pipe: first.parameter_pipe,
            report_pipe: first.report_pipe,
            ledger: None,
            leave_running: first.leave_running,
            phases: first.phases,
        }
    }
}
