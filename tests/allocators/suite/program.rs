//! The subject: workers that stand still during a dump, and go on in the restored process.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use async_trait::async_trait;
use defrost::resource::HookError;
use defrost::{Cycle, Resource, Wake};

use super::diary::Diary;
use super::role::Role;
use super::shown::Prepared;
use super::worker::Worker;

pub const WORKERS: usize = 3;
/// Turns between two notes in the diary.
const LAP: usize = 200;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Rest,
    Work,
    End,
}

/// The workers.
struct Crew {
    orders: Mutex<(Order, usize)>,
    changed: Condvar,
    prepared: Mutex<Option<Prepared>>,
    diary: Diary,
}

impl Crew {
    fn order(&self, order: Order) {
        self.orders.lock().unwrap().0 = order;
        self.changed.notify_all();
    }

    /// Waits until all of them rest.
    fn resting(&self) {
        let orders = self.orders.lock().unwrap();
        drop(self.changed.wait_while(orders, |(_, resting)| *resting < WORKERS).unwrap());
    }

    /// Where a worker rests, if that is the order. Whether it is to go on.
    fn may_go_on(&self) -> bool {
        let mut orders = self.orders.lock().unwrap();
        if orders.0 == Order::Rest {
            orders.1 += 1;
            self.changed.notify_all();
            orders = self.changed.wait_while(orders, |(order, _)| *order == Order::Rest).unwrap();
            orders.1 -= 1;
        }
        orders.0 != Order::End
    }

    fn work(&self, mut worker: Worker) {
        let mut turns = 0_usize;
        while self.may_go_on() {
            worker.turn();
            turns += 1;
            if turns.is_multiple_of(LAP) {
                worker.check();
                self.diary.note("lap", std::process::id());
            }
        }
        worker.check();
    }
}

#[async_trait]
impl Resource for Crew {
    async fn before_checkpoint(&self, _: &Cycle) -> Result<(), HookError> {
        self.order(Order::Rest);
        // They are through their turns soon.
        tokio::task::block_in_place(|| self.resting());
        Ok(())
    }

    async fn after_restore(&self, wake: &Wake) -> Result<(), HookError> {
        if let Some(prepared) = self.prepared.lock().unwrap().take().filter(|_| wake.restored().is_some()) {
            let diary = self.diary.clone();
            // It takes its time on a busy host, and a hook has a deadline.
            std::thread::spawn(move || {
                diary.note("shown", serde_json::to_string(&prepared.look()).unwrap());
            });
        }
        self.order(Order::Work);
        Ok(())
    }
}

pub fn program(role: Role, trim: fn()) {
    let crew = Arc::new(Crew {
        orders: Mutex::new((Order::Rest, 0)),
        changed: Condvar::new(),
        prepared: Mutex::new(Some(Prepared::new())),
        diary: role.diary.clone(),
    });
    let workers: Vec<JoinHandle<()>> = (0..WORKERS as u64)
        .map(|number| {
            let crew = Arc::clone(&crew);
            std::thread::spawn(move || {
                let worked = catch_unwind(AssertUnwindSafe(|| crew.work(Worker::new(number << 32, trim))));
                if let Err(panic) = worked {
                    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                    crew.diary.note("wrong", text.replace('\n', " "));
                    std::process::exit(1);
                }
            })
        })
        .collect();
    crew.resting();
    Role::run(async {
        let stand = role.open();
        stand.subject.context().register("crew", Arc::clone(&crew) as Arc<dyn Resource>).forever();
        stand.serve().await;
    });
    crew.order(Order::End);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    role.diary.note("churned", std::process::id());
}
