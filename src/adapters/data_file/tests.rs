use super::*;
use crate::adapters::tests::{failure, quiesce, restored, wake};

fn opened(options: DataFileOptions) -> (tempfile::TempDir, Context, DataFile) {
    let folder = tempfile::tempdir().unwrap();
    let context = Context::new();
    let path = folder.path().join("data");
    fs::write(&path, "0123456789").unwrap();
    let file = DataFile::open(&context, "data", path, options).unwrap();
    (folder, context, file)
}

fn both() -> DataFileOptions {
    DataFileOptions::new().read(true).write(true)
}

async fn next(file: &DataFile) -> String {
    let mut two = [0; 2];
    file.lock().await.unwrap().read_exact(&mut two).unwrap();
    String::from_utf8(two.to_vec()).unwrap()
}

/// A quiesced process is dumped, and restored from there.
async fn dumped(context: &Context) {
    quiesce(context).await.kept().iter().for_each(|slot| drop(slot.take()));
}

#[tokio::test]
async fn it_goes_on_at_its_offset() {
    let (_folder, context, file) = opened(both().truncate(false));
    for (end, expected) in [(Wake::Resumed, "01"), (Wake::Aborted, "23"), (restored(&[]), "45")] {
        assert_eq!(next(&file).await, expected);
        let cycle = quiesce(&context).await;
        assert_eq!(file.lock().await.unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        if end.restored().is_some() {
            cycle.kept().iter().for_each(|slot| drop(slot.take()));
        }
        wake(&context, &end).await;
    }
    assert_eq!(next(&file).await, "67");
    file.lock().await.unwrap().write_all(b"x").unwrap();
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "01234567x9");
}

#[tokio::test]
async fn a_keeper_that_died_is_made_up_for_by_the_path() {
    let (_folder, context, file) = opened(both());
    assert_eq!(next(&file).await, "01");
    dumped(&context).await;
    wake(&context, &Wake::Resumed).await;
    assert_eq!(next(&file).await, "23");
}

#[tokio::test]
async fn a_change_in_the_gap_is_told() {
    let change = |path: &Path, what: &str| match what {
        "it is missing" => fs::remove_file(path).unwrap(),
        "another file is in its place" => {
            let other = path.with_extension("other");
            fs::write(&other, "0123456789").unwrap();
            fs::rename(other, path).unwrap();
        }
        "its size was 10 bytes and is 3" => fs::write(path, "abc").unwrap(),
        _ => {
            let file = OpenOptions::new().write(true).open(path).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
    };
    for what in [
        "it is missing",
        "another file is in its place",
        "its size was 10 bytes and is 3",
        "it has been written to",
    ] {
        let (_folder, context, file) = opened(both());
        dumped(&context).await;
        change(file.path(), what);
        let text = failure(&context, &restored(&[])).await;
        assert!(
            text.ends_with(&format!("{} has changed since the dump: {what}", file.path().display())),
            "{text}"
        );
        assert_eq!(file.lock().await.unwrap_err().kind(), io::ErrorKind::NotFound);

        let accepting = both().create(true).on_change(OnChange::Accept);
        let (_folder, context, file) = opened(accepting);
        dumped(&context).await;
        change(file.path(), what);
        wake(&context, &restored(&[])).await;
        file.lock().await.unwrap().write_all(b"x").unwrap();
    }
}

#[tokio::test]
async fn one_that_was_removed_cannot_be_dumped() {
    let (_folder, context, file) = opened(both());
    fs::remove_file(file.path()).unwrap();
    let runs = context.quiesce(&Cycle::new(true)).await;
    let text = runs.into_iter().find_map(crate::context::HookRun::failure).unwrap().to_string();
    assert!(text.contains("is open but no longer at its path: it is missing"), "{text}");
    wake(&context, &Wake::Aborted).await;
    assert_eq!(next(&file).await, "01");
}

#[tokio::test]
async fn a_cycle_waits_for_the_guard() {
    let (_folder, context, file) = opened(both());
    let guard = file.lock().await.unwrap();
    let quiescing = tokio::spawn({
        let context = context.clone();
        async move { drop(quiesce(&context).await) }
    });
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    assert!(!quiescing.is_finished());
    drop(guard);
    quiescing.await.unwrap();
    assert!(file.lock().await.is_err());
}
