//! The page around the contents: one file that loads nothing and runs nothing. It must not know what is shown.

use base64::Engine as _;
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};

const STYLE: &str = include_str!("style.css");

/// Nothing may be loaded or run, whatever a name in the data says; no style sheet but ours applies.
fn policy() -> String {
    let hash = base64::engine::general_purpose::STANDARD.encode(Sha256::digest(STYLE));
    format!("default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'")
}

/// A part of the page: its anchor, what the list of contents calls it, and the part.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) body: Markup,
}

/// A whole page.
pub(super) fn page(title: &str, lead: &Markup, parts: &[Part]) -> String {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(policy());
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                meta name="generator" content={ "defrost " (env!("CARGO_PKG_VERSION")) };
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#main" { "Skip to the contents" }
                header { h1 { (title) } (lead) }
                nav aria-label="Contents" {
                    ul { @for part in parts { li { a href={ "#" (part.id) } { (part.name) } } } }
                }
                main id="main" {
                    @for part in parts {
                        section id=(part.id) aria-labelledby={ (part.id) "-name" } {
                            h2 id={ (part.id) "-name" } { (part.name) }
                            (part.body)
                        }
                    }
                }
                footer { p { "Made by defrost " (env!("CARGO_PKG_VERSION")) "." } }
            }
        }
    };
    page.into_string()
}
