//! Clones of one restore: where each of them is asked.
//!
//! It must not know how they were started.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::Deserialize;

use super::question::Question;
use crate::image::Image;

/// What `defrost restore --clones N --json` says, as far as it matters here.
#[derive(Debug, Deserialize)]
struct Listed {
    clones: Vec<Clone>,
}

#[derive(Debug, Deserialize)]
struct Clone {
    addresses: BTreeMap<String, SocketAddr>,
}

/// The name of the listener that the question goes to, as the image calls it.
#[must_use]
pub fn listener(image: &std::path::Path, question: &Question) -> Option<String> {
    let image = Image::open(image).ok()?;
    let listens = &image.manifest().subject.listens;
    let asked = listens.iter().find(|listen| listen.address.port() == question.address.port())?;
    Some(asked.name.clone())
}

/// The question, once for each clone.
///
/// # Errors
/// That the command did not say where they listen.
pub fn questions(said: &str, listener: Option<&str>, question: &Question) -> Result<Vec<Question>, String> {
    let listed: Listed = serde_json::from_str(said)
        .map_err(|error| format!("the command did not list its clones: {error}"))?;
    let name = listener.ok_or("the image has no listener that the question could go to")?;
    let ask = |clone: &Clone| {
        let address = clone.addresses.get(name).ok_or(format!("a clone has no address for {name}"))?;
        Ok(question.at(*address))
    };
    listed.clones.iter().map(ask).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_clone_is_asked_at_its_own_address() {
        let question = Question::bytes("127.0.0.1:9", b"a", b"b").unwrap();
        let said = r#"{"clones":[{"number":1,"addresses":{"http":"127.0.0.1:7"}},{"addresses":{"http":"127.0.0.1:8"}}]}"#;
        let asked = questions(said, Some("http"), &question).unwrap();
        assert_eq!(asked.iter().map(|one| one.address.port()).collect::<Vec<_>>(), [7, 8]);
        assert!(questions(said, Some("echo"), &question).is_err());
        assert!(questions("clone 1: pid 7", Some("http"), &question).is_err());
    }
}
