//! Dumps and restores a small server for real: the only honest probe of a host. Knows no way to make that server; the
//! caller brings one.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use crate::child::{Guarded, end, reap};
use crate::deadline::Deadline;
use crate::error::{Error, SubjectFault};
use crate::find::Criu;
use crate::folder::private_folder;
use crate::options::{DumpOptions, DumpTarget, RestoreOptions};
use crate::transport::{Restored, Rpc, Transport};

use nix::unistd::Pid;

/// The longest output of a subject that is read, in bytes.
const OUTPUT_LIMIT: usize = 4096;

/// How long dump and restore of the subject took, with the start of CRIU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SelfTest {
    /// The dump.
    pub dump: Duration,
    /// The restore.
    pub restore: Duration,
}

/// Starts `subject`, dumps it, restores it, and connects to it, all within `limit`. CRIU 4.1.1 on kernels from 6.16 on
/// passes `criu check` and fails here.
///
/// The subject must stay the process that was started, make a session of its own (setsid), listen on a TCP port of
/// 127.0.0.1, print `listening on port N`, and then put its standard output on `/dev/null`; its standard input and error
/// are there already.
///
/// # Errors
/// Those of [`Transport::dump`] and [`Transport::restore`], which say what this host cannot do, and [`Error::Subject`]. In
/// every case the subject, what was restored, and the folder of the images are gone afterwards.
pub fn self_test(criu: &Criu, mut subject: Command, limit: Duration) -> Result<SelfTest, Error> {
    let deadline = Deadline::after(limit);
    let images = private_folder("criu-selftest.")?;
    subject.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let program = subject.get_program().into();
    let mut subject = Guarded::spawn(&mut subject).map_err(|source| Error::Spawn { program, source })?;
    let output = subject.take_stdout().ok_or(Error::Subject(SubjectFault::Silent))?;
    let port = read_port(output, &deadline).map_err(Error::Subject)?;

    let rpc = Rpc::new(criu.clone());
    let start = Instant::now();
    let target = DumpTarget::Pid(subject.pid().as_raw());
    rpc.dump(&DumpOptions::new(images.path(), target), deadline.remaining())?;
    let dump = start.elapsed();
    // CRIU has killed it, and its pid is taken until it is reaped.
    subject.kill();

    let start = Instant::now();
    let restored = rpc.restore(&RestoreOptions::new(images.path()), deadline.remaining())?;
    let restore = start.elapsed();
    let answer = knock(restored, port, &deadline);
    end(Pid::from_raw(restored.pid));
    answer.map_err(Error::Subject)?;
    Ok(SelfTest { dump, restore })
}

/// Reads the subject's output to its end, which comes when it has put it on `/dev/null`.
fn read_port(mut output: ChildStdout, deadline: &Deadline) -> Result<u16, SubjectFault> {
    let mut text = Vec::new();
    let mut chunk = [0; 256];
    while text.len() < OUTPUT_LIMIT {
        let port = parse_port(&text);
        if !deadline.readable(&output).map_err(SubjectFault::Output)? {
            return Err(if port.is_some() { SubjectFault::OutputOpen } else { SubjectFault::Silent });
        }
        match output.read(&mut chunk).map_err(SubjectFault::Output)? {
            0 => return port.ok_or(SubjectFault::Silent),
            count => text.extend_from_slice(&chunk[..count]),
        }
    }
    Err(SubjectFault::Silent)
}

fn parse_port(output: &[u8]) -> Option<u16> {
    let (line, _) = std::str::from_utf8(output).ok()?.split_once('\n')?;
    line.strip_prefix("listening on port ")?.trim().parse().ok()
}

/// Connects. The kernel alone does that for a listener, so the process must be alive as well.
fn knock(restored: Restored, port: u16, deadline: &Deadline) -> Result<(), SubjectFault> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    // A timeout of zero is an error of its own.
    let left = deadline.remaining().max(Duration::from_millis(1));
    TcpStream::connect_timeout(&address, left).map_err(SubjectFault::Deaf)?;
    match reap(Pid::from_raw(restored.pid)) {
        Some(_) => Err(SubjectFault::Ended),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_port_of_a_whole_line_only() {
        assert_eq!(parse_port(b"listening on port 4711\n"), Some(4711));
        for output in [&b"listening on port 47"[..], b"hello\n", b"listening on port 99999\n", b"\xff\n"] {
            assert_eq!(parse_port(output), None);
        }
    }
}
