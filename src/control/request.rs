//! A line that somebody sent, as a request. It must not know who sent it, nor carry anything out.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use super::lines::LINE_LIMIT;

/// The words that a request begins with, as hints list them.
const WORDS: &str = "checkpoint DIR [[no-sync] leave-running], status [json], resources [json], audit [json], events [json|follow], stop, help";

/// The last word of a checkpoint after which the process goes on.
const LEAVE_RUNNING: &str = "leave-running";
/// Before that: a server that does not know this word takes it for a part of the folder's name, and goes on.
const NO_SYNC: &str = "no-sync";

/// How much of an unknown word an error repeats, in characters.
const SHOWN: usize = 32;

/// What can be asked of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Checkpoint the process.
    Checkpoint {
        /// The folder that becomes the image. A relative one is taken from where the server was started.
        dir: PathBuf,
        /// Whether the process goes on afterwards.
        leave_running: bool,
        /// Whether the image is on disk when it is complete; if not, it is good until the host is started anew. A process
        /// that does not go on has no other image.
        durable: bool,
    },
    /// Who the process is and how it is.
    Status {
        /// As a JSON object instead of words.
        json: bool,
    },
    /// What is registered.
    Resources {
        /// As a JSON object instead of words.
        json: bool,
    },
    /// What would block a checkpoint right now.
    Audit {
        /// As a JSON object instead of words.
        json: bool,
    },
    /// What happened.
    Events {
        /// As a JSON object with all that is kept, instead of counts in words.
        json: bool,
    },
    /// What happened and what happens from now on: a JSON object a line, until the client ends the connection.
    Follow {
        /// The sequence number to begin with; 0 for all that is kept.
        from: u64,
    },
    /// End the process, in its own orderly way.
    Stop,
    /// The words that there are.
    Help,
}

impl Request {
    /// Reads one line, without its newline. A carriage return before that, and blanks around, do not count.
    ///
    /// The folder of a checkpoint is everything up to the end or to the last words `leave-running` or `no-sync
    /// leave-running`: it may contain blanks, and need not be UTF-8.
    ///
    /// # Errors
    /// [`RequestError`].
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        if line.len() > LINE_LIMIT {
            return Err(RequestError::TooLong);
        }
        let line = line.trim_ascii();
        if line.is_empty() {
            return Err(RequestError::Empty);
        }
        if let Some(byte) = line.iter().find(|byte| byte.is_ascii_control()) {
            return Err(RequestError::Control { byte: *byte });
        }
        let (word, rest) = split_word(line);
        match word {
            b"checkpoint" => checkpoint(rest),
            b"status" => json(word, rest).map(|json| Self::Status { json }),
            b"resources" => json(word, rest).map(|json| Self::Resources { json }),
            b"audit" => json(word, rest).map(|json| Self::Audit { json }),
            b"events" => events(word, rest),
            b"stop" => nothing_more(word, rest).map(|()| Self::Stop),
            b"help" => nothing_more(word, rest).map(|()| Self::Help),
            _ => Err(RequestError::Unknown { word: shown(word) }),
        }
    }

    /// The line that [`parse`](Self::parse) reads as this request, without a newline.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let with_json =
            |word: &str, json: bool| format!("{word}{}", if json { " json" } else { "" }).into_bytes();
        match self {
            Self::Checkpoint { dir, leave_running, durable } => {
                let mut line = b"checkpoint ".to_vec();
                line.extend_from_slice(dir.as_os_str().as_bytes());
                if *leave_running && !durable {
                    line.push(b' ');
                    line.extend_from_slice(NO_SYNC.as_bytes());
                }
                if *leave_running {
                    line.push(b' ');
                    line.extend_from_slice(LEAVE_RUNNING.as_bytes());
                }
                line
            }
            Self::Status { json } => with_json("status", *json),
            Self::Resources { json } => with_json("resources", *json),
            Self::Audit { json } => with_json("audit", *json),
            Self::Events { json } => with_json("events", *json),
            Self::Follow { from: 0 } => b"events follow".to_vec(),
            Self::Follow { from } => format!("events follow {from}").into_bytes(),
            Self::Stop => b"stop".to_vec(),
            Self::Help => b"help".to_vec(),
        }
    }

    /// The words that there are, in one line.
    #[must_use]
    pub fn words() -> &'static str {
        WORDS
    }
}

fn split_word(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|byte| *byte == b' ').unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    (word, rest.trim_ascii_start())
}

fn checkpoint(rest: &[u8]) -> Result<Request, RequestError> {
    let (dir, leave_running) = last_word(rest, LEAVE_RUNNING);
    let (dir, no_sync) = if leave_running { last_word(dir, NO_SYNC) } else { (dir, false) };
    if dir.is_empty() {
        return Err(RequestError::NoFolder);
    }
    Ok(Request::Checkpoint { dir: OsString::from_vec(dir.to_vec()).into(), leave_running, durable: !no_sync })
}

/// What is before this word, if it is the last one, and whether it is.
fn last_word<'a>(line: &'a [u8], word: &str) -> (&'a [u8], bool) {
    match line.strip_suffix(word.as_bytes()) {
        Some(before) if before.is_empty() || before.ends_with(b" ") => (before.trim_ascii_end(), true),
        _ => (line, false),
    }
}

fn events(word: &[u8], rest: &[u8]) -> Result<Request, RequestError> {
    let (second, from) = split_word(rest);
    if second != b"follow" {
        return json(word, rest).map(|json| Request::Events { json });
    }
    if from.is_empty() {
        return Ok(Request::Follow { from: 0 });
    }
    let from = std::str::from_utf8(from).ok().and_then(|from| from.parse().ok());
    from.map(|from| Request::Follow { from })
        .ok_or_else(|| RequestError::Extra { word: shown(word), extra: shown(rest) })
}

fn json(word: &[u8], rest: &[u8]) -> Result<bool, RequestError> {
    if rest == b"json" { Ok(true) } else { nothing_more(word, rest).map(|()| false) }
}

fn nothing_more(word: &[u8], rest: &[u8]) -> Result<(), RequestError> {
    if rest.is_empty() {
        return Ok(());
    }
    Err(RequestError::Extra { word: shown(word), extra: shown(rest) })
}

/// The beginning of what was sent, fit to be repeated in an answer.
fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let mut kept: String = text.chars().take(SHOWN).collect();
    if kept.len() < text.len() {
        kept.push('…');
    }
    kept
}

/// Why a line is no request. Nothing was done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// There is nothing in it.
    #[error("the request is empty")]
    Empty,
    /// It is longer than [`LINE_LIMIT`].
    #[error("the request is longer than {LINE_LIMIT} bytes")]
    TooLong,
    /// It has a byte in it that no name should have.
    #[error("the request contains the control character {}", Code(*byte))]
    Control {
        /// The byte.
        byte: u8,
    },
    /// It begins with another word.
    #[error("unknown request '{word}'")]
    Unknown {
        /// The word, or its beginning.
        word: String,
    },
    /// Something follows that does not belong there.
    #[error("{word} does not take '{extra}'")]
    Extra {
        /// The word that it begins with.
        word: String,
        /// What follows, or its beginning.
        extra: String,
    },
    /// A checkpoint without a folder.
    #[error("checkpoint needs a folder")]
    NoFolder,
}

impl RequestError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Empty | Self::Unknown { .. } => format!("requests are {WORDS}"),
            Self::TooLong => "give the image a shorter path".to_owned(),
            Self::Control { .. } => "send plain words, one request a line".to_owned(),
            Self::Extra { word, .. } if word == "stop" || word == "help" => format!("send {word} alone"),
            Self::Extra { word, .. } if word == "events" => {
                "send events, events json, events follow, or events follow NUMBER".to_owned()
            }
            Self::Extra { word, .. } => format!("send {word}, or {word} json"),
            Self::NoFolder => format!("send checkpoint DIR, or checkpoint DIR {LEAVE_RUNNING}"),
        }
    }
}

struct Code(u8);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:02x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn dump(dir: &str, leave_running: bool) -> Result<Request, RequestError> {
        Ok(Request::Checkpoint { dir: dir.into(), leave_running, durable: true })
    }

    #[test]
    fn a_folder_is_everything_up_to_the_last_word() {
        assert_eq!(Request::parse(b"checkpoint ./img"), dump("./img", false));
        assert_eq!(Request::parse(b" checkpoint  /a b/c  d \r"), dump("/a b/c  d", false));
        assert_eq!(Request::parse(b"checkpoint /a b leave-running"), dump("/a b", true));
        assert_eq!(Request::parse(b"checkpoint leave-running x"), dump("leave-running x", false));
        assert_eq!(Request::parse(b"checkpoint not-leave-running"), dump("not-leave-running", false));
        assert_eq!(Request::parse(b"checkpoint a no-sync"), dump("a no-sync", false));
        let fleeting = Request::Checkpoint { dir: "a b".into(), leave_running: true, durable: false };
        assert_eq!(Request::parse(b"checkpoint a b  no-sync leave-running"), Ok(fleeting));
        let odd = Request::parse(b"checkpoint \xff\xfe").unwrap();
        assert_eq!(odd.to_line(), b"checkpoint \xff\xfe");
    }

    #[test]
    fn words_are_read() {
        assert_eq!(Request::parse(b"status\r"), Ok(Request::Status { json: false }));
        assert_eq!(Request::parse(b"status  json"), Ok(Request::Status { json: true }));
        assert_eq!(Request::parse(b"resources json"), Ok(Request::Resources { json: true }));
        assert_eq!(Request::parse(b"audit"), Ok(Request::Audit { json: false }));
        assert_eq!(Request::parse(b"events json"), Ok(Request::Events { json: true }));
        assert_eq!(Request::parse(b"events follow"), Ok(Request::Follow { from: 0 }));
        assert_eq!(Request::parse(b"events follow  17"), Ok(Request::Follow { from: 17 }));
        assert!(Request::parse(b"events follow me").unwrap_err().hint().contains("follow NUMBER"));
        assert_eq!(Request::parse(b"stop"), Ok(Request::Stop));
        assert_eq!(Request::parse(b"help"), Ok(Request::Help));
    }

    #[test]
    fn what_is_no_request_is_told_why() {
        let refused = |line: &[u8]| {
            let error = Request::parse(line).unwrap_err();
            format!("{error}; {}", error.hint())
        };
        assert!(refused(b"").starts_with("the request is empty; requests are checkpoint DIR"));
        assert!(refused(b"GET / HTTP/1.1").starts_with("unknown request 'GET'; requests are checkpoint"));
        assert!(refused(b"checkpoint").starts_with("checkpoint needs a folder; send checkpoint DIR"));
        assert!(refused(b"checkpoint  leave-running").starts_with("checkpoint needs a folder"));
        assert_eq!(refused(b"status now"), "status does not take 'now'; send status, or status json");
        assert_eq!(refused(b"stop it"), "stop does not take 'it'; send stop alone");
        assert!(refused(b"checkpoint a\0b").contains("control character 0x00"));
        assert!(refused(b"checkpoint a\nb").contains("control character 0x0a"));
        assert!(refused(&[b'a'; LINE_LIMIT + 1]).starts_with("the request is longer than 8192 bytes"));
        assert!(refused(&[b'a'; 100]).contains(&format!("'{}…'", "a".repeat(32))));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(line: Vec<u8>) {
            if let Err(error) = Request::parse(&line) {
                prop_assert!(!error.to_string().contains('\n'));
                prop_assert!(!error.hint().is_empty());
            }
        }

        #[test]
        fn a_line_is_read_back(dir in "[!-~\u{80}-\u{2fff}]( ?[!-~\u{80}-\u{2fff}]){0,40}", leave_running: bool, durable: bool) {
            let request = Request::Checkpoint { dir: dir.into(), leave_running, durable: durable || !leave_running };
            if request.to_line() != b"checkpoint leave-running" {
                prop_assert_eq!(Request::parse(&request.to_line()), Ok(request));
            }
        }
    }
}
