//! Descriptors that are kept, those that block, and the moment of the dump.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use defrost::checkpoint::Phase;
use defrost::resource::{AtFreeze, HookError, Keep};
use defrost::{Cycle, Resource, Wake};

use crate::fixture::{Act, Bench, in_runtime};

struct Keeps {
    socket: Mutex<Option<OwnedFd>>,
    token: Mutex<Option<Keep>>,
    fail: bool,
}

#[async_trait]
impl Resource for Keeps {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        let socket = self.socket.lock().unwrap().take().ok_or("no socket")?;
        *self.token.lock().unwrap() = Some(cycle.keep(socket));
        if self.fail { Err("after keeping".into()) } else { Ok(()) }
    }

    async fn after_restore(&self, _: &Wake) -> Result<(), HookError> {
        let token = self.token.lock().unwrap().take().ok_or("no token")?;
        *self.socket.lock().unwrap() = token.take();
        Ok(())
    }
}

pub fn kept_descriptors_come_back() {
    for fail in [false, true] {
        in_runtime(async {
            let bench = Bench::new();
            let (near, far) = UnixStream::pair().unwrap();
            let keeps = Keeps { socket: Mutex::new(Some(near.into())), token: Mutex::new(None), fail };
            let keeps = Arc::new(keeps);
            let held = bench.subject.context().register("keeps", Arc::clone(&keeps) as Arc<dyn Resource>);
            (&far).write_all(b"meanwhile").unwrap();
            assert_eq!(bench.subject.checkpoint_restore("unused").await.is_err(), fail);
            let mut near = UnixStream::from(keeps.socket.lock().unwrap().take().expect("it comes back"));
            let mut text = [0; 9];
            near.read_exact(&mut text).unwrap();
            assert_eq!(&text, b"meanwhile");
            drop(held);
        });
    }
}

#[derive(Default)]
struct Freezes {
    frozen: AtomicUsize,
    thawed: Mutex<Vec<String>>,
}

impl AtFreeze for Freezes {
    fn freeze(&self) {
        self.frozen.fetch_add(1, Ordering::SeqCst);
    }

    fn thaw(&self, wake: &Wake) {
        self.thawed.lock().unwrap().push(wake.to_string());
    }
}

struct AsksForFreeze(Arc<Freezes>);

#[async_trait]
impl Resource for AsksForFreeze {
    async fn before_checkpoint(&self, cycle: &Cycle) -> Result<(), HookError> {
        cycle.at_freeze(Arc::clone(&self.0) as Arc<dyn AtFreeze>);
        Ok(())
    }
}

pub fn the_moment_of_the_dump_is_announced() {
    in_runtime(async {
        let mut bench = Bench::new();
        let freezes = Arc::new(Freezes::default());
        let held = bench.subject.context().register("rng", Arc::new(AsksForFreeze(Arc::clone(&freezes))));
        bench.works().await;
        assert_eq!(freezes.frozen.load(Ordering::SeqCst), 1);
        assert_eq!(*freezes.thawed.lock().unwrap(), ["resumed"]);
        // When there is no dump there is no such moment.
        bench.add("stuck", Act::Fail("no"), Act::Work);
        bench.fails().await;
        assert_eq!(freezes.frozen.load(Ordering::SeqCst), 1);
        drop(held);
    });
}

pub fn an_unregistered_descriptor_blocks_by_name() {
    in_runtime(async {
        let mut bench = Bench::new();
        bench.add("a", Act::Work, Act::Work);
        let path = std::env::temp_dir().join(format!("defrost-forgotten-{}", std::process::id()));
        let file = std::fs::File::create(&path).unwrap();
        let error = bench.fails().await;
        assert_eq!(error.phase, Phase::Audit);
        let text = error.to_string();
        assert!(text.contains(path.to_str().unwrap()), "{text}");
        assert!(text.contains("registered by nobody"), "{text}");
        assert!(!error.hints().is_empty());
        assert_eq!(bench.log(), ["before a", "aborted a"]);
        drop(file);
        std::fs::remove_file(path).unwrap();
        bench.works().await;
    });
}

pub fn a_forgotten_listener_blocks_with_its_address() {
    in_runtime(async {
        let bench = Bench::new();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let text = bench.fails().await.to_string();
        assert!(text.contains(&format!("tcp listener {address}")), "{text}");
        drop(listener);
        bench.works().await;
    });
}
