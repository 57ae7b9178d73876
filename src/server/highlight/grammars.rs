//! The grammars and themes, and how a request finds its own among them.
//!
//! It must not know requests.

use std::fmt;

use serde::Serialize;
use syntect::highlighting::Theme;
use syntect::parsing::{SyntaxReference, SyntaxSet};
use two_face::theme::{EmbeddedLazyThemeSet, EmbeddedThemeName};

/// The theme of who names none.
pub(super) const DEFAULT_THEME: &str = "InspiredGitHub";

/// Names that people use and no grammar has.
const ALIASES: &[(&str, &str)] = &[
    ("apache", "Apache Conf"),
    ("assembly", "x86_64 Assembly"),
    ("csharp", "C#"),
    ("docker", "Dockerfile"),
    ("fsharp", "F#"),
    ("golang", "Go"),
    ("javascript", "JavaScript"),
    ("node", "JavaScript"),
    ("objc", "Objective-C"),
    ("plain", "Plain Text"),
    ("plaintext", "Plain Text"),
    ("python3", "Python"),
    ("shell", "Bourne Again Shell (bash)"),
    ("shell-script", "Bourne Again Shell (bash)"),
    ("text", "Plain Text"),
];

/// These are for terminals: they name its colours and have none of their own.
const FOR_TERMINALS: &[EmbeddedThemeName] =
    &[EmbeddedThemeName::Ansi, EmbeddedThemeName::Base16, EmbeddedThemeName::Base16_256];

/// A language has no grammar here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no grammar is named {0:?}, and none is for files that end so")]
pub struct UnknownLanguage(pub String);

/// All grammars that come with two-face, with newlines, and its themes.
pub(super) struct Grammars {
    pub(super) set: SyntaxSet,
    themes: EmbeddedLazyThemeSet,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grammars({})", self.set.syntaxes().len())
    }
}

/// One language, for the list of them.
#[derive(Debug, Serialize)]
pub(super) struct Language<'a> {
    name: &'a str,
    /// The ends of the names of its files, or whole names.
    extensions: &'a [String],
}

/// One theme, for the list of them.
#[derive(Debug, Serialize)]
pub(super) struct ThemeInfo {
    pub(super) name: &'static str,
    pub(super) dark: bool,
}

impl Grammars {
    /// Unpacks them. Their patterns are compiled when they are first needed.
    pub(super) fn load() -> Self {
        Self { set: two_face::syntax::extra_newlines(), themes: two_face::theme::extra() }
    }

    /// By its name, in any case, or by the end of the names of its files.
    pub(super) fn named(&self, name: &str) -> Result<&SyntaxReference, UnknownLanguage> {
        let alias = ALIASES.iter().find(|(alias, _)| alias.eq_ignore_ascii_case(name));
        let name = alias.map_or(name, |(_, name)| name);
        let whole = self.set.syntaxes().iter().rev().find(|syntax| syntax.name.eq_ignore_ascii_case(name));
        let found = whole.or_else(|| self.by_end(name));
        found.ok_or_else(|| UnknownLanguage(name.to_owned()))
    }

    /// Those for people.
    pub(super) fn languages(&self) -> Vec<Language<'_>> {
        let shown = self.set.syntaxes().iter().filter(|syntax| !syntax.hidden);
        let mut languages: Vec<_> = shown
            .map(|syntax| Language { name: &syntax.name, extensions: &syntax.file_extensions })
            .collect();
        languages.sort_by_key(|language| language.name.to_lowercase());
        languages
    }

    /// By its name.
    pub(super) fn theme(&self, name: &str) -> Option<(&'static str, &Theme)> {
        let name = theme_names().find(|theme| theme.as_name() == name)?;
        Some((name.as_name(), self.themes.get(name)))
    }

    /// Those that show on a page. The first call unpacks all.
    pub(super) fn themes(&self) -> Vec<ThemeInfo> {
        theme_names()
            .map(|name| ThemeInfo { name: name.as_name(), dark: is_dark(self.themes.get(name)) })
            .collect()
    }
}

fn theme_names() -> impl Iterator<Item = EmbeddedThemeName> {
    EmbeddedLazyThemeSet::theme_names().iter().copied().filter(|name| !FOR_TERMINALS.contains(name))
}

/// By the luma of its background, in the weights of ITU-R BT.601.
fn is_dark(theme: &Theme) -> bool {
    theme.settings.background.is_some_and(|colour| {
        299 * u32::from(colour.r) + 587 * u32::from(colour.g) + 114 * u32::from(colour.b) < 128_000
    })
}
