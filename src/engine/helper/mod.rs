//! The helper: the process outside of the dumped tree that is CRIU's parent and finishes the image.
//!
//! CRIU refuses to dump a tree that it is in, and the subject may not exist when the image is complete. So the
//! subject starts this process apart from itself ([`start`]), and it does the rest ([`work`]): it runs CRIU
//! under a deadline, writes the manifest, renames the folder, and only then ends the subject, or lets it go on.
//!
//! The subject is dumped with `leave_stopped`: between the dump and the complete folder it stands still, so
//! that it can neither act twice (once here, once in the restored process) nor be lost when the folder cannot
//! be completed.

mod link;
mod order;
pub mod start;
pub mod work;

/// The helper's name, as `ps` shows it and as a supervisor knows it by.
pub const PROCESS_NAME: &str = "defrost-helper";
/// Exit status: the image is complete, and the helper has ended the subject.
pub const ENDED_THE_SUBJECT: i32 = 0;
/// Exit status: the image is complete, and the subject goes on.
pub const LEFT_RUNNING: i32 = 10;
/// Exit status: there is no image, and the subject goes on.
pub const FAILED: i32 = 1;

/// The variable that turns a program into the helper; its value is checked only for being there.
const ROLE_VARIABLE: &str = "DEFROST_HELPER";

/// The name of CRIU's log in the folder.
const LOG_NAME: &str = "dump.log";

/// The numbers under which the helper is handed its order and CRIU's end of the socket; kept ones follow.
const ORDER_FD: i32 = 3;
const WORKER_FD: i32 = 4;
const FIRST_KEPT_FD: i32 = 5;

/// The line that says that an image is complete, as the control socket's clients read it.
#[must_use]
pub fn complete_line(image: &std::path::Path, bytes: u64, took_us: u64, goes_on: bool) -> String {
    let fate = if goes_on { "the server goes on" } else { "the server has ended" };
    format!(
        "ok: {} is complete, {:.1} MiB in {} ms; {fate}\n",
        image.display(),
        megabytes(bytes),
        took_us / 1000
    )
}

/// Bytes in units of 1,048,576, for people.
#[expect(clippy::cast_precision_loss, reason = "one digit behind the point is shown")]
fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / (1024.0 * 1024.0)
}
