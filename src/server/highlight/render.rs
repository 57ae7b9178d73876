//! From source text to HTML, line by line.
//!
//! It must not know who asked, nor why it shall stop.

use serde::Deserialize;
use syntect::highlighting::{HighlightIterator, HighlightState, Highlighter, Theme};
use syntect::html::{
    ClassStyle, IncludeBackground, append_highlighted_html_for_styled_line, line_tokens_to_classed_spans,
    start_highlighted_html_snippet,
};
use syntect::parsing::{ParseState, ScopeStack, SyntaxReference};
use syntect::util::LinesWithEndings;

use super::grammars::Grammars;

/// The longest line that is highlighted, in bytes. A longer one is made by a program for programs, is shown as it
/// is, and could not be stopped within: a pattern looks at all of a line, at each of its places.
pub(super) const LINE_LIMIT: usize = 4096;

/// The longest HTML, in bytes: it is many times as long as its text.
const HTML_LIMIT: usize = 32 << 20;

/// All class names begin so, that they meet no others on a page.
pub(super) const CLASSES: ClassStyle = ClassStyle::SpacedPrefixed { prefix: "hl-" };

/// How colours get to the words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Style {
    /// By the names of classes, which a style sheet gives colours.
    Classes,
    /// By a style attribute at each word.
    Inline,
}

/// A text, and how to show it.
#[derive(Debug)]
pub(super) struct Request {
    /// The name of its grammar.
    pub(super) language: String,
    /// The name of the theme; without a say in classes.
    pub(super) theme: &'static str,
    pub(super) style: Style,
    pub(super) text: String,
}

/// Why there is no HTML.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It was to.
    Asked,
    /// The HTML became too long.
    Large,
    /// A grammar is in disorder.
    Broken(String),
}

impl Request {
    /// The HTML, a `pre` element. Between lines it asks whether to stop.
    pub(super) fn render(&self, grammars: &Grammars, stop: &dyn Fn() -> bool) -> Result<String, Stopped> {
        let syntax = grammars.set.find_syntax_by_name(&self.language);
        let syntax = syntax.unwrap_or_else(|| grammars.set.find_syntax_plain_text());
        let theme = grammars.theme(self.theme).map(|(_, theme)| theme);
        match (self.style, theme) {
            (Style::Inline, Some(theme)) => self.write(Inline::new(grammars, syntax, theme), stop),
            _ => self.write(Classed::new(grammars, syntax), stop),
        }
    }

    fn write(&self, mut writer: impl Write, stop: &dyn Fn() -> bool) -> Result<String, Stopped> {
        let mut html = writer.begin();
        let mut whole = String::new();
        for line in LinesWithEndings::from(&self.text) {
            if stop() {
                return Err(Stopped::Asked);
            }
            let line = if line.ends_with('\n') {
                line
            } else {
                // The grammars expect each line to end.
                whole.push_str(line);
                whole.push('\n');
                &whole
            };
            writer.line(line, &mut html).map_err(|error| Stopped::Broken(error.to_string()))?;
            if html.len() > HTML_LIMIT {
                return Err(Stopped::Large);
            }
        }
        writer.end(&mut html);
        Ok(html)
    }
}

/// What writes one of the two kinds of HTML.
trait Write {
    fn begin(&self) -> String;
    fn line(&mut self, line: &str, html: &mut String) -> Result<(), syntect::Error>;
    fn end(&self, html: &mut String);
}

struct Classed<'a> {
    grammars: &'a Grammars,
    parsing: ParseState,
    scopes: ScopeStack,
    open: isize,
}

impl<'a> Classed<'a> {
    fn new(grammars: &'a Grammars, syntax: &SyntaxReference) -> Self {
        Self { grammars, parsing: ParseState::new(syntax), scopes: ScopeStack::new(), open: 0 }
    }
}

impl Write for Classed<'_> {
    fn begin(&self) -> String {
        "<pre class=\"hl-code\"><code>".to_owned()
    }

    fn line(&mut self, line: &str, html: &mut String) -> Result<(), syntect::Error> {
        let parsed = if line.len() > LINE_LIMIT {
            Vec::new()
        } else {
            self.parsing.parse_line(line, &self.grammars.set)?
        };
        let (spans, opened) = line_tokens_to_classed_spans(line, &parsed, CLASSES, &mut self.scopes)?;
        html.push_str(&spans);
        self.open += opened;
        Ok(())
    }

    fn end(&self, html: &mut String) {
        for _ in 0..self.open {
            html.push_str("</span>");
        }
        html.push_str("</code></pre>\n");
    }
}

struct Inline<'a> {
    grammars: &'a Grammars,
    theme: &'a Theme,
    highlighter: Highlighter<'a>,
    parsing: ParseState,
    state: HighlightState,
}

impl<'a> Inline<'a> {
    fn new(grammars: &'a Grammars, syntax: &SyntaxReference, theme: &'a Theme) -> Self {
        let highlighter = Highlighter::new(theme);
        let state = HighlightState::new(&highlighter, ScopeStack::new());
        Self { grammars, theme, highlighter, parsing: ParseState::new(syntax), state }
    }
}

impl Write for Inline<'_> {
    fn begin(&self) -> String {
        // It ends by a newline, which a browser leaves out.
        start_highlighted_html_snippet(self.theme).0
    }

    fn line(&mut self, line: &str, html: &mut String) -> Result<(), syntect::Error> {
        let (_, background) = start_highlighted_html_snippet(self.theme);
        let background = IncludeBackground::IfDifferent(background);
        if line.len() > LINE_LIMIT {
            let plain = [(self.highlighter.get_default(), line)];
            return append_highlighted_html_for_styled_line(&plain, background, html);
        }
        let parsed = self.parsing.parse_line(line, &self.grammars.set)?;
        let styled: Vec<_> =
            HighlightIterator::new(&mut self.state, &parsed, line, &self.highlighter).collect();
        append_highlighted_html_for_styled_line(&styled, background, html)
    }

    fn end(&self, html: &mut String) {
        html.push_str("</pre>\n");
    }
}
