use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::*;
use crate::adapters::tests::{failure, quiesce, restored, wake};
use crate::resource::Cycle;
use crate::wake::Wake;

const AMPLE: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(50);

fn serve(listener: &Arc<UnixListener>) -> JoinHandle<()> {
    let listener = Arc::clone(listener);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let _ = stream.write_all(b"!").await;
                let _ = stream.read(&mut [0]).await;
            });
        }
    })
}

async fn greeted(stream: &mut UnixStream) -> bool {
    let mut byte = [0];
    matches!(timeout(AMPLE, stream.read_exact(&mut byte)).await, Ok(Ok(_)))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[tokio::test]
async fn clients_of_the_gap_are_served_when_the_process_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let context = Context::new();
    let listener = Arc::new(UnixListener::bind(&context, "ctl", &path).unwrap());
    let server = serve(&listener);
    for end in [Wake::Resumed, Wake::Aborted] {
        let mut before = UnixStream::connect(&path).await.unwrap();
        assert!(greeted(&mut before).await);
        quiesce(&context).await;
        let mut meanwhile = UnixStream::connect(&path).await.unwrap();
        assert!(timeout(SHORT, meanwhile.read(&mut [0])).await.is_err(), "accepted while quiesced");
        wake(&context, &end).await;
        assert!(greeted(&mut meanwhile).await);
        assert_eq!(before.read(&mut [0]).await.unwrap(), 0);
    }
    server.abort();
}

#[tokio::test]
async fn a_restored_process_binds_its_path_with_its_permissions() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let context = Context::new();
    let listener = UnixOptions::new().mode(0o666).bind(&context, "ctl", &path).unwrap();
    let listener = Arc::new(listener);
    assert_eq!(mode(&path), 0o666);
    fs::set_permissions(&path, Permissions::from_mode(0o620)).unwrap();
    lchown(&path, Some(7), Some(8)).unwrap();
    let server = serve(&listener);
    for _ in 0..2 {
        quiesce(&context).await;
        wake(&context, &restored(&[])).await;
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.mode() & 0o7777, found.uid(), found.gid()), (0o620, 7, 8));
        assert!(greeted(&mut UnixStream::connect(&path).await.unwrap()).await);
    }
    let moved = folder.path().join("t");
    quiesce(&context).await;
    wake(&context, &restored(&[("ctl.listen", moved.to_str().unwrap())])).await;
    assert_eq!(listener.path(), moved);
    assert!(greeted(&mut UnixStream::connect(&moved).await.unwrap()).await);
    server.abort();
}

#[tokio::test]
async fn a_path_that_somebody_else_holds_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let context = Context::new();
    let live = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = UnixListener::bind(&context, "ctl", &path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    drop(live);
    // Now it is a left-over.
    let listener = UnixListener::bind(&context, "ctl", &path).unwrap();

    quiesce(&context).await;
    fs::remove_file(&path).unwrap();
    let clone = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let text = failure(&context, &restored(&[])).await;
    assert!(text.contains("s is in use"), "{text}");
    drop(listener);
    assert!(path.exists(), "the path of another process was removed");
    drop(clone);

    let file = folder.path().join("file");
    fs::write(&file, "precious").unwrap();
    let error = UnixListener::bind(&context, "ctl", &file).unwrap_err();
    assert!(error.to_string().ends_with("exists and is not a socket"), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

#[tokio::test]
async fn the_path_is_removed_on_drop() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let context = Context::new();
    drop(UnixListener::bind(&context, "ctl", &path).unwrap());
    assert!(!path.exists());
    let listener = UnixListener::bind(&context, "ctl", &path).unwrap();
    quiesce(&context).await;
    drop(listener);
    wake(&context, &Wake::Resumed).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stuck_connection_is_named_by_its_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let context = Context::new();
    let listener = UnixOptions::new().drain_limit(SHORT).bind(&context, "ctl", &path).unwrap();
    let _client = UnixStream::connect(&path).await.unwrap();
    let _stuck = listener.accept().await.unwrap();
    let runs = context.quiesce(&Cycle::new(true)).await;
    let text = runs.into_iter().find_map(crate::context::HookRun::failure).unwrap().to_string();
    let name = format!("connection from pid {} to {}", std::process::id(), path.display());
    assert!(text.contains(&name), "{text}");
    wake(&context, &Wake::Aborted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_left_over_is_taken_by_one_of_many() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Handle::current();
    for round in 0..100 {
        let path = folder.path().join(round.to_string());
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let together = std::sync::Barrier::new(4);
        let take = || {
            let _runtime = runtime.enter();
            together.wait();
            UnixListener::bind(&Context::new(), "ctl", &path)
        };
        let taken: Vec<_> = std::thread::scope(|scope| {
            let attempts: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            attempts.into_iter().filter_map(|attempt| attempt.join().unwrap().ok()).collect()
        });
        assert_eq!(taken.len(), 1, "several listen at one path");
    }
}

#[tokio::test]
async fn a_restored_process_listens_elsewhere_while_its_path_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let (home, beside) = (folder.path().join("s"), folder.path().join("s-1"));
    let context = Context::new();
    let elsewhere = beside.clone();
    let options = UnixOptions::new().fallback(move || elsewhere.clone());
    let listener = options.bind(&context, "ctl", &home).unwrap();
    quiesce(&context).await;
    fs::remove_file(&home).unwrap();
    let original = std::os::unix::net::UnixListener::bind(&home).unwrap();
    wake(&context, &restored(&[])).await;
    assert_eq!(listener.path(), beside);
    drop(original);
    quiesce(&context).await;
    wake(&context, &restored(&[])).await;
    assert_eq!(listener.path(), home);
    assert!(!beside.exists());
}
