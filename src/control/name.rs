//! The name that a server is found by. It must not know where sockets lie.

use std::fmt;

/// The longest name, in bytes. With `.sock` behind it, it fits into the 107 bytes of a socket's path (unix(7))
/// wherever the folder is not itself unusually long.
pub const NAME_LIMIT: usize = 64;

/// The name of a server, fit to be a file's name: 1 to 64 of the characters `A-Za-z0-9._-`, neither `.` nor `-`
/// first, and not digits only, which would be taken for a pid.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(String);

impl Name {
    /// Checks a name.
    ///
    /// # Errors
    /// [`NameError`], which says which rule it breaks.
    pub fn new(name: &str) -> Result<Self, NameError> {
        check(name, NAME_LIMIT)?;
        Ok(Self(name.to_owned()))
    }

    /// Checks a name that is looked for: a clone's may be longer, by a part of its instance's id.
    pub(super) fn of_clone_too(name: &str) -> Result<Self, NameError> {
        check(name, NAME_LIMIT + "-01234567".len())?;
        Ok(Self(name.to_owned()))
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn check(name: &str, limit: usize) -> Result<(), NameError> {
    let fails = |rule| Err(NameError { name: name.escape_debug().take(NAME_LIMIT).collect(), rule });
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() {
        return fails(Rule::Empty);
    }
    if name.len() > limit {
        return fails(Rule::TooLong);
    }
    if !name.bytes().all(allowed) {
        return fails(Rule::Character);
    }
    if name.starts_with(['.', '-']) {
        return fails(Rule::First);
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return fails(Rule::Number);
    }
    Ok(())
}

/// A name that no server can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the name '{name}' {rule}")]
pub struct NameError {
    name: String,
    rule: Rule,
}

impl NameError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        "use 1 to 64 letters, digits, '.', '_' and '-', a letter or '_' among them, and no '.' or '-' first"
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Empty,
    TooLong,
    Character,
    First,
    Number,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "is empty",
            Self::TooLong => "is too long",
            Self::Character => "contains a character that is not allowed",
            Self::First => "begins with '.' or '-'",
            Self::Number => "would be taken for a pid",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for good in ["echo", "_", "a.b-c_D9", "4711b", &"x".repeat(64)] {
            assert_eq!(Name::new(good).unwrap().as_str(), good);
        }
        for (bad, why) in [
            ("", "is empty"),
            (".hidden", "begins with"),
            ("-x", "begins with"),
            ("a/b", "not allowed"),
            ("a b", "not allowed"),
            ("ä", "not allowed"),
            ("4711", "would be taken for a pid"),
            (&"x".repeat(65), "is too long"),
        ] {
            let error = Name::new(bad).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(Name::of_clone_too(&format!("{}-01234567", "x".repeat(64))).is_ok());
    }
}
