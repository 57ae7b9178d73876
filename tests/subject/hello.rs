//! The documents' example: a writer that takes part.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Wake};

use super::role::Role;
use super::stage::Stage;

const FILE: &str = "greeting";

/// Writes to a file that is closed for the dump.
struct Writer {
    path: PathBuf,
    file: Mutex<Option<File>>,
}

#[async_trait]
impl Resource for Writer {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        *self.file.lock().unwrap() = None;
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        let mut file = OpenOptions::new().append(true).open(&self.path)?;
        if wake.restored().is_some() {
            file.write_all(b" there!")?;
        }
        *self.file.lock().unwrap() = Some(file);
        Ok(())
    }
}

pub fn program(role: Role) {
    let path = role.path(FILE);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"hello").unwrap();
    Role::run(async move {
        let stand = role.open();
        stand.register("writer", Writer { path, file: Mutex::new(Some(file)) });
        stand.serve().await;
    });
}

/// After three restores of one image, by CRIU alone and by the command, the file holds what was written before the
/// dump once, and what follows a restore three times.
pub fn hello_there(stage: &Stage) {
    for by_command in [false, true] {
        let image = stage.start("hello", &[]).checkpoint(stage, "img");
        assert_eq!(fs::read_to_string(stage.host.path(FILE)).unwrap(), "hello");
        let before = stage.diary.texts("restored").len();
        for number in before + 1..=before + 3 {
            let (revived, _) =
                if by_command { stage.restore(&image, &[], number) } else { stage.revive(&image, number) };
            assert!(crate::support::client::answers_within(image.port, super::stage::SOON));
            revived.end();
        }
        assert_eq!(fs::read_to_string(stage.host.path(FILE)).unwrap(), "hello there! there! there!");
    }
}
