//! Which language a text is in when nobody says it: by the name of its file, or by its first line.
//!
//! The grammars name ends of file names, names, and patterns of first lines. What they leave out, or claim for more
//! than one of them, is here. It must not know requests.

use syntect::parsing::SyntaxReference;

use super::grammars::Grammars;
use super::render::LINE_LIMIT;

/// Whole names, as they are written.
const NAMES: &[(&str, &str)] = &[
    ("BUILD", "Python"),
    ("Containerfile", "Dockerfile"),
    ("WORKSPACE", "Python"),
    ("apache2.conf", "Apache Conf"),
    ("httpd.conf", "Apache Conf"),
    // The end of its name is NAnt's.
    ("meson.build", "Plain Text"),
];

/// Names that go on behind a dot: `Dockerfile.debian`.
const STEMS: &[(&str, &str)] =
    &[("Containerfile", "Dockerfile"), ("Dockerfile", "Dockerfile"), ("Makefile", "Makefile")];

/// Ends of names, in any case: those that no grammar has, and those that several have.
const ENDS: &[(&str, &str)] = &[
    ("cjs", "JavaScript"),
    ("csproj", "XML"),
    ("cu", "C++"),
    ("cuh", "C++"),
    ("fs", "F#"),
    ("h", "C"),
    ("ipynb", "JSON"),
    ("json5", "JSON"),
    ("jsonc", "JSON"),
    // The grammar of JavaScript takes an apostrophe between tags for the begin of a string.
    ("jsx", "TypeScriptReact"),
    ("ksh", "Bourne Again Shell (bash)"),
    ("mjs", "JavaScript"),
    ("plist", "XML"),
    ("service", "INI"),
];

/// What runs a script, without the version at the end of its name.
const INTERPRETERS: &[(&str, &str)] = &[
    ("ash", "Bourne Again Shell (bash)"),
    ("awk", "AWK"),
    ("bash", "Bourne Again Shell (bash)"),
    ("bun", "JavaScript"),
    ("crystal", "Crystal"),
    ("dash", "Bourne Again Shell (bash)"),
    ("deno", "TypeScript"),
    ("elixir", "Elixir"),
    ("escript", "Erlang"),
    ("fish", "Fish"),
    ("gawk", "AWK"),
    ("gnuplot", "gnuplot"),
    ("groovy", "Groovy"),
    ("jq", "JQ"),
    ("julia", "Julia"),
    ("ksh", "Bourne Again Shell (bash)"),
    ("lua", "Lua"),
    ("luajit", "Lua"),
    ("make", "Makefile"),
    ("mawk", "AWK"),
    ("node", "JavaScript"),
    ("nodejs", "JavaScript"),
    ("ocaml", "OCaml"),
    ("osascript", "AppleScript"),
    ("perl", "Perl"),
    ("php", "PHP"),
    ("python", "Python"),
    ("racket", "Racket"),
    ("Rscript", "R"),
    ("ruby", "Ruby"),
    ("runghc", "Haskell"),
    ("runhaskell", "Haskell"),
    ("scala", "Scala"),
    ("sh", "Bourne Again Shell (bash)"),
    ("swift", "Swift"),
    ("tclsh", "Tcl"),
    ("ts-node", "TypeScript"),
    ("tsx", "TypeScript"),
    ("wish", "Tcl"),
    ("zsh", "Bourne Again Shell (bash)"),
];

impl Grammars {
    /// The likeliest for a file of this name, or else for a text that begins so; plain text where nothing speaks for
    /// any other.
    pub(super) fn guess(&self, file: Option<&str>, text: &str) -> &SyntaxReference {
        let by_file = file.and_then(|file| self.by_file(file.rsplit(['/', '\\']).next().unwrap_or(file)));
        by_file.or_else(|| self.by_text(text)).unwrap_or_else(|| self.set.find_syntax_plain_text())
    }

    /// By the end of a file's name, without a dot before it.
    pub(super) fn by_end(&self, end: &str) -> Option<&SyntaxReference> {
        let own = ENDS.iter().find(|(own, _)| own.eq_ignore_ascii_case(end));
        match own {
            Some((_, grammar)) => self.set.find_syntax_by_name(grammar),
            None => self.set.find_syntax_by_extension(end),
        }
    }

    fn by_file(&self, name: &str) -> Option<&SyntaxReference> {
        let whole = NAMES.iter().find(|(own, _)| *own == name);
        let stem = || {
            let (stem, _) = name.split_once('.')?;
            STEMS.iter().find(|(own, _)| *own == stem)
        };
        if let Some((_, grammar)) = whole.or_else(stem) {
            return self.set.find_syntax_by_name(grammar);
        }
        // `page.html.twig` has two ends that mean something, and the longer one says more.
        let ends = || name.match_indices('.').filter_map(|(at, _)| name.get(at + 1..));
        self.set.find_syntax_by_extension(name).or_else(|| ends().find_map(|end| self.by_end(end)))
    }

    /// By the first line that says something. What no such line is like is not searched.
    fn by_text(&self, text: &str) -> Option<&SyntaxReference> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let line = text.lines().find(|line| !line.trim().is_empty())?;
        if line.len() > LINE_LIMIT {
            return None;
        }
        let known = |grammar: &str| self.set.find_syntax_by_name(grammar);
        let by_mode = || self.named(mode(line)?).ok();
        let by_script = || known(interpreter(line)?);
        // Here the grammars name the one for components of a framework.
        let by_page = || is_page(line).then(|| known("HTML")).flatten();
        let by_pattern = || self.set.find_syntax_by_first_line(line);
        by_mode().or_else(by_script).or_else(by_page).or_else(by_pattern)
    }
}

/// The language that a line names for an editor: `-*- mode: python -*-`, `vim: set ft=python:`.
fn mode(line: &str) -> Option<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || "+#-_".contains(c);
    let emacs = line.split_once("-*-").and_then(|(_, rest)| rest.split_once("-*-"));
    let said = if let Some((said, _)) = emacs {
        match said.split(';').find_map(|part| part.trim().strip_prefix("mode:")) {
            Some(mode) => mode,
            // A variable of the editor's is no mode.
            None if said.contains(':') => return None,
            None => said,
        }
    } else {
        let (_, vim) = line.split_once("vim:")?;
        ["filetype=", "ft=", "syntax="].into_iter().find_map(|key| Some(vim.split_once(key)?.1))?
    };
    let said = said.trim_start();
    let word = said.split(|c| !is_word(c)).next()?;
    (!word.is_empty()).then_some(word)
}

/// The grammar of what the kernel would run this script by.
fn interpreter(line: &str) -> Option<&'static str> {
    let mut words = line.strip_prefix("#!")?.split_whitespace();
    let mut program = words.next()?.rsplit('/').next()?;
    if program == "env" {
        program = words.find(|word| !word.starts_with('-') && !word.contains('='))?.rsplit('/').next()?;
    }
    let name = program.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    INTERPRETERS.iter().find(|(own, _)| *own == name).map(|(_, grammar)| *grammar)
}

/// Whether a page of the web begins so.
fn is_page(line: &str) -> bool {
    let line = line.trim_start().as_bytes();
    let begins =
        |text: &str| line.get(..text.len()).is_some_and(|own| own.eq_ignore_ascii_case(text.as_bytes()));
    begins("<!doctype html") || begins("<html")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_named_here_exists() {
        let grammars = Grammars::load();
        for (name, grammar) in [NAMES, STEMS, ENDS, INTERPRETERS].concat() {
            assert!(grammars.set.find_syntax_by_name(grammar).is_some(), "{name}: {grammar}");
        }
    }

    #[test]
    fn a_file_is_known_by_its_name() {
        let grammars = Grammars::load();
        for (file, expected) in [
            ("a/b.mjs", "JavaScript"),
            ("a\\App.JSX", "TypeScriptReact"),
            ("x.h", "C"),
            ("x.hpp", "C++"),
            ("x.fs", "F#"),
            ("BUILD", "Python"),
            ("x.build", "NAnt Build File"),
            ("Dockerfile.debian", "Dockerfile"),
            ("page.html.twig", "HTML (Twig)"),
            ("x.tar.rs", "Rust"),
            ("Cargo.lock", "TOML"),
            (".bashrc", "Bourne Again Shell (bash)"),
            ("x.unknown", "Plain Text"),
            ("...", "Plain Text"),
            ("", "Plain Text"),
        ] {
            assert_eq!(grammars.guess(Some(file), "").name, expected, "{file}");
        }
    }

    #[test]
    fn a_text_is_known_by_its_first_line() {
        let grammars = Grammars::load();
        for (text, expected) in [
            ("<!DOCTYPE html>\n<html>", "HTML"),
            ("\u{feff}\n  <HTML lang=en>", "HTML"),
            ("<htmé", "Plain Text"),
            ("<?xml version=\"1.0\"?>", "XML"),
            ("#!/usr/bin/env -S LANG=C deno run\n", "TypeScript"),
            ("#!/usr/bin/env\n", "Plain Text"),
            ("#! /usr/bin/python3.12 -u\n", "Python"),
            ("#!/usr/bin/env lua5.4", "Lua"),
            ("#!/usr/bin/Rscript", "R"),
            ("#!/opt/none", "Plain Text"),
            ("// -*- mode: C++; tab-width: 4 -*-", "C++"),
            ("# -*- ruby -*-", "Ruby"),
            ("# -*- coding: utf-8 -*-", "Plain Text"),
            ("/* vim: set ts=4 ft=rust: */", "Rust"),
            ("# vim: ft=", "Plain Text"),
            ("\n\n#!/bin/sh\n", "Bourne Again Shell (bash)"),
            ("\n\n", "Plain Text"),
        ] {
            assert_eq!(grammars.guess(None, text).name, expected, "{text}");
        }
    }
}
