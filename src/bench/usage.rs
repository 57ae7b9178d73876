//! How much of the processors others took.
//!
//! It must not know what was measured meanwhile.

use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use procfs::CurrentSI;

/// What had been used at one moment.
#[derive(Debug)]
pub struct Usage {
    began: Instant,
    busy: Duration,
    own: Duration,
}

impl Usage {
    /// From here on.
    #[must_use]
    pub fn start() -> Self {
        Self { began: Instant::now(), busy: busy(), own: own() }
    }

    /// What this process and the children that it has reaped used since then, with what those had reaped in turn.
    #[must_use]
    pub fn own(&self) -> Duration {
        own().saturating_sub(self.own)
    }

    /// The share of all processors that others took since then, 0 to 1: all that ran, less what is this process's
    /// [`own`](Self::own), and less `more` that was its own too. Children that still run count as others: end them
    /// before. The kernel counts in steps of 10 ms, so a short time says little.
    #[must_use]
    pub fn others(&self, more: Duration) -> f64 {
        let room = self.began.elapsed().as_secs_f64() * processors();
        let others = busy().saturating_sub(self.busy).saturating_sub(self.own()).saturating_sub(more);
        if room > 0.0 { (others.as_secs_f64() / room).min(1.0) } else { 0.0 }
    }
}

fn processors() -> f64 {
    // All of the machine, not those that this process may use: all are counted.
    let count = nix::unistd::sysconf(nix::unistd::SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    count.map_or(1.0, |count| count.max(1) as f64)
}

/// What all processors have worked; nothing where the kernel does not tell.
fn busy() -> Duration {
    let Ok(stat) = procfs::KernelStats::current() else { return Duration::ZERO };
    let all = stat.total;
    let rest = all.irq.unwrap_or(0) + all.softirq.unwrap_or(0) + all.steal.unwrap_or(0);
    let ticks = all.user + all.nice + all.system + rest;
    Duration::from_secs_f64(ticks as f64 / procfs::ticks_per_second() as f64)
}

fn own() -> Duration {
    let of = |who| {
        let Ok(usage) = getrusage(who) else { return Duration::ZERO };
        let time = usage.user_time() + usage.system_time();
        Duration::from_micros(u64::try_from(time.tv_sec() * 1_000_000 + time.tv_usec()).unwrap_or(0))
    };
    of(UsageWho::RUSAGE_SELF) + of(UsageWho::RUSAGE_CHILDREN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_others_is_a_share() {
        let usage = Usage::start();
        std::thread::sleep(Duration::from_millis(30));
        let others = usage.others(Duration::ZERO);
        assert!((0.0..=1.0).contains(&others), "{others}");
        assert!(usage.others(Duration::from_secs(3600)) == 0.0);
    }
}
