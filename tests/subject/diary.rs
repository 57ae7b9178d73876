//! What a subject tells its test: lines of a word and a text, in a file that is opened for each.

use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;

use crate::support::{PATIENCE, within};

#[derive(Clone, Debug)]
pub struct Diary(pub PathBuf);

impl Diary {
    /// Adds a line, by one write at the end of the file: several processes may write.
    pub fn note(&self, word: &str, text: impl Display) {
        let line = format!("{word} {text}\n");
        let mut file = OpenOptions::new().append(true).create(true).open(&self.0).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }

    /// The texts behind this word so far.
    pub fn texts(&self, word: &str) -> Vec<String> {
        let all = fs::read_to_string(&self.0).unwrap_or_default();
        let of_word = |line: &str| {
            line.split_once(' ').filter(|(first, _)| *first == word).map(|(_, text)| text.to_owned())
        };
        all.lines().filter_map(of_word).collect()
    }

    /// The text of the line that is the `number`th with this word, counted from 1, once it is there.
    #[track_caller]
    pub fn read(&self, word: &str, number: usize) -> String {
        let mut found = None;
        let there = within(PATIENCE, || {
            found = self.texts(word).into_iter().nth(number - 1);
            found.is_some()
        });
        let so_far = || fs::read_to_string(&self.0).unwrap_or_default();
        assert!(there, "`{word}` number {number} is not in the diary within {PATIENCE:?}:\n{}", so_far());
        found.unwrap()
    }
}
