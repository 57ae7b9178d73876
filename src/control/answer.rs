//! An answer as one line, and a line as an answer. It must not know who asked, or over what.

use serde::Serialize;

use super::request::RequestError;
use crate::checkpoint::{Cause, CheckpointError, Outcome, Phase};
use crate::engine::helper::complete_line;

/// What separates the text of an error from what to do about it.
const HINT: &str = "; hint: ";

/// What answers in the log are filed under: the module as its users know it.
const TARGET: &str = "defrost::control";

/// What a server answers to a request.
///
/// As a line it is `ok: TEXT`, `error: TEXT; hint: HINT`, or a JSON object alone where that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Whether it was done; else the text says why not.
    pub ok: bool,
    /// The text without `ok:` or `error:`; or a JSON object.
    pub text: String,
    /// What to do about an error.
    pub hint: Option<String>,
}

impl Answer {
    pub(super) fn ok(text: impl Into<String>) -> Self {
        Self { ok: true, text: text.into(), hint: None }
    }

    pub(super) fn error(text: impl Into<String>, hints: &[String]) -> Self {
        let hint = if hints.is_empty() { None } else { Some(hints.join("; ")) };
        Self { ok: false, text: text.into(), hint }
    }

    pub(super) fn json(value: &impl Serialize) -> Self {
        match serde_json::to_string(value) {
            Ok(text) => Self::ok(text),
            Err(error) => Self::error(format!("no json: {error}"), &[]),
        }
    }

    pub(super) fn of_request_error(error: &RequestError) -> Self {
        Self::error(error.to_string(), &[error.hint()])
    }

    /// The answer to a checkpoint, where this process lives to give it. A restored process owes none: the one
    /// who asked was the original's.
    pub(super) fn of_checkpoint(outcome: &Result<Outcome, CheckpointError>) -> Option<Self> {
        let (image, failures) = match outcome {
            Err(error) => return Some(Self::error(error.to_string(), &error.hints())),
            Ok(Outcome::Restored { .. }) => return None,
            Ok(Outcome::Resumed { image, failures }) => (image, failures),
        };
        let line = match &image.image {
            Some(folder) => complete_line(folder, image.bytes, image.took_us, true),
            None => {
                "ok: every hook passed, and the simulated engine dumps nothing; the server goes on".to_owned()
            }
        };
        let mut text = line.trim_start_matches("ok: ").trim_end().to_owned();
        for (index, failure) in failures.iter().enumerate() {
            text.push_str(if index == 0 { ", but not all of it: " } else { "; " });
            text.push_str(&failure.to_string());
        }
        Some(Self::ok(text))
    }

    /// The answer to a checkpoint while another one runs, in the words of the checkpoint itself.
    pub(super) fn already_running() -> Self {
        let error = CheckpointError::new(Phase::Request, vec![Cause::AlreadyRunning]);
        Self::error(error.to_string(), &error.hints())
    }

    /// The line with its newline. Control characters in the texts, newlines among them, become blanks.
    #[must_use]
    pub fn to_line(&self) -> Vec<u8> {
        let start = match self.ok {
            true if self.text.starts_with('{') => "",
            true => "ok: ",
            false => "error: ",
        };
        let hint = self.hint.as_deref().map(|hint| [HINT, hint]).unwrap_or_default();
        let line = [start, &self.text, hint[0], hint[1]].concat();
        let mut line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        line.push('\n');
        line.into_bytes()
    }

    /// Logs an answer that has nobody to go to.
    pub(super) fn log(&self, asked_by: &str) {
        let Self { ok, text, hint } = self;
        match hint {
            _ if *ok => tracing::info!(target: TARGET, "{asked_by}: {text}"),
            Some(hint) => tracing::warn!(target: TARGET, "{asked_by}: {text}; hint: {hint}"),
            None => tracing::warn!(target: TARGET, "{asked_by}: {text}"),
        }
    }

    /// Reads a line, without its newline. `None` when it is no answer.
    #[must_use]
    pub fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        if line.starts_with('{') {
            return Some(Self::ok(line));
        }
        if let Some(text) = line.strip_prefix("ok:") {
            return Some(Self::ok(text.trim_start()));
        }
        let text = line.strip_prefix("error:")?.trim_start();
        let (text, hint) =
            text.split_once(HINT).map_or((text, None), |(text, hint)| (text, Some(hint.to_owned())));
        Some(Self { ok: false, text: text.to_owned(), hint })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::engine::Complete;

    fn line(answer: &Answer) -> String {
        String::from_utf8(answer.to_line()).unwrap()
    }

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(line(&Answer::ok("echo,\nready")), "ok: echo, ready\n");
        let hints = ["go to bed".to_owned(), "or\r\nwait".to_owned()];
        assert_eq!(
            line(&Answer::error("it is late", &hints)),
            "error: it is late; hint: go to bed; or  wait\n"
        );
        assert_eq!(line(&Answer::error("no", &[])), "error: no\n");
        assert_eq!(line(&Answer::json(&["a\nb"])), "ok: [\"a\\nb\"]\n");
        assert_eq!(line(&Answer::json(&std::collections::BTreeMap::from([("a", 1)]))), "{\"a\":1}\n");
    }

    #[test]
    fn a_finished_checkpoint_is_told_as_the_helper_tells_it() {
        let told = |image: Option<&str>| {
            let image =
                Complete { image: image.map(Into::into), bytes: 3 << 20, frozen_us: 1, took_us: 12_345 };
            Answer::of_checkpoint(&Ok(Outcome::Resumed { image, failures: Vec::new() })).unwrap()
        };
        assert_eq!(line(&told(Some("/i"))), complete_line("/i".as_ref(), 3 << 20, 12_345, true));
        assert!(told(None).text.ends_with("dumps nothing; the server goes on"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(line: Vec<u8>) {
            let _ = Answer::parse(&line);
        }

        #[test]
        fn a_line_is_read_back(ok: bool, text in "[a-z0-9.,]{1,20}", hint in "[a-z]{0,9}") {
            let hints = if hint.is_empty() || ok { Vec::new() } else { vec![hint] };
            let answer = if ok { Answer::ok(text) } else { Answer::error(text, &hints) };
            let line = answer.to_line();
            prop_assert_eq!(Answer::parse(&line[..line.len() - 1]), Some(answer));
        }
    }
}
