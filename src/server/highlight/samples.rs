//! Short texts in the common languages, for warming up and for trying.
//!
//! It must not know grammars.

/// By the names of their grammars.
pub(super) const SAMPLES: &[(&str, &str)] = &[
    ("Bourne Again Shell (bash)", include_str!("samples/bash.txt")),
    ("C", include_str!("samples/c.txt")),
    ("C#", include_str!("samples/csharp.txt")),
    ("C++", include_str!("samples/cpp.txt")),
    ("CSS", include_str!("samples/css.txt")),
    ("Diff", include_str!("samples/diff.txt")),
    ("Dockerfile", include_str!("samples/dockerfile.txt")),
    ("Go", include_str!("samples/go.txt")),
    ("HTML", include_str!("samples/html.txt")),
    ("Haskell", include_str!("samples/haskell.txt")),
    ("JSON", include_str!("samples/json.txt")),
    ("Java", include_str!("samples/java.txt")),
    ("JavaScript", include_str!("samples/javascript.txt")),
    ("Kotlin", include_str!("samples/kotlin.txt")),
    ("Lua", include_str!("samples/lua.txt")),
    ("Makefile", include_str!("samples/makefile.txt")),
    ("Markdown", include_str!("samples/markdown.txt")),
    ("PHP", include_str!("samples/php.txt")),
    ("Perl", include_str!("samples/perl.txt")),
    ("Plain Text", include_str!("samples/mixed.txt")),
    ("Python", include_str!("samples/python.txt")),
    ("Ruby", include_str!("samples/ruby.txt")),
    ("Rust", include_str!("samples/rust.txt")),
    ("SCSS", include_str!("samples/scss.txt")),
    ("SQL", include_str!("samples/sql.txt")),
    ("Scala", include_str!("samples/scala.txt")),
    ("Swift", include_str!("samples/swift.txt")),
    ("TOML", include_str!("samples/toml.txt")),
    ("TypeScript", include_str!("samples/typescript.txt")),
    ("XML", include_str!("samples/xml.txt")),
    ("YAML", include_str!("samples/yaml.txt")),
];

/// A text for this grammar: its own, or one with a little of everything.
pub(super) fn sample(grammar: &str) -> &'static str {
    let own = SAMPLES.iter().find(|(name, _)| *name == grammar);
    own.map_or(include_str!("samples/mixed.txt"), |(_, text)| text)
}
