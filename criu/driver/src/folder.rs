//! A temporary folder of this user alone. Knows nothing of what goes into it.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

use crate::error::Error;

/// Makes it; it goes when the value is dropped. Never readable by others: a pid that they could write would be
/// believed, and an image is executable code.
pub(crate) fn private_folder(prefix: &str) -> Result<TempDir, Error> {
    let made = tempfile::Builder::new().prefix(prefix).permissions(Permissions::from_mode(0o700)).tempdir();
    made.map_err(|source| Error::Folder { path: std::env::temp_dir(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_for_the_owner_only_and_goes_away() {
        let folder = private_folder("x.").unwrap();
        let path = folder.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o700);
        drop(folder);
        assert!(!path.exists());
    }
}
