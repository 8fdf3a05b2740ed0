//! What a hole costs beside writes, as the calls of a file tell. A file system may ask the device
//! for each hole and wait, with the file locked. On a busy system the thread then also waits for a
//! processor, so a hole takes milliseconds, however few bytes it has.

use terrapin_base::Env;
use terrapin_base::sync::{AtomicU64, Ordering};

/// Shorter writes say little about how fast bytes are written.
const LEAST_BYTES: usize = 64 << 10;
/// The last call has this part (1/n) of a mean.
const PART: u64 = 8;
/// A write takes this part (1/n) off the mean time of a hole. So after some time without holes they
/// count as cheap, are tried again, and a few tell.
const AGES: u64 = 512;

/// The first hole counts as at most this long. Later ones count as at most this and four means.
const FIRST_NS: u64 = 100_000;
/// Longer calls count as this long: sums do not overflow.
const NS_MAX: u64 = 10_000_000_000;

/// Recent means of a file's calls.
#[derive(Default)]
pub(super) struct HoleCost {
    hole_ns: AtomicU64,
    /// Nanoseconds that it takes to write a MiB.
    mib_ns: AtomicU64,
}

impl HoleCost {
    /// Does work that makes a hole.
    pub(super) fn hole<T>(&self, env: &Env, work: impl FnOnce() -> T) -> T {
        let (took_ns, done) = timed(env, work);
        self.learn_hole(took_ns);
        done
    }

    /// Does work that writes `bytes` bytes.
    pub(super) fn write<T>(&self, env: &Env, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes < LEAST_BYTES {
            return work();
        }
        let (took_ns, done) = timed(env, work);
        self.learn_write(bytes as u64, took_ns);
        done
    }

    /// How many bytes are written in the time of a hole. 0 before both were measured.
    pub(super) fn bytes(&self) -> u64 {
        let hole_ns = self.hole_ns.load(Ordering::Relaxed);
        match self.mib_ns.load(Ordering::Relaxed) {
            0 => 0,
            mib_ns => (hole_ns << 20) / mib_ns,
        }
    }

    // Calls of other threads meanwhile may be lost. That changes a mean little.
    fn learn_hole(&self, took_ns: u64) {
        let mean_ns = self.hole_ns.load(Ordering::Relaxed);
        // One slow hole among others says little.
        let took_ns = took_ns.min((4 * mean_ns + FIRST_NS).min(NS_MAX));
        let mean_ns = mean_ns - mean_ns / PART + took_ns / PART;
        self.hole_ns.store(mean_ns, Ordering::Relaxed);
    }

    fn learn_write(&self, bytes: u64, took_ns: u64) {
        let mib_ns = ((took_ns.min(NS_MAX) << 20) / bytes.max(1)).max(1);
        let mean_ns = match self.mib_ns.load(Ordering::Relaxed) {
            0 => mib_ns,
            mean_ns => mean_ns - mean_ns / PART + mib_ns / PART,
        };
        self.mib_ns.store(mean_ns.max(1), Ordering::Relaxed);
        let hole_ns = self.hole_ns.load(Ordering::Relaxed);
        self.hole_ns
            .store(hole_ns - hole_ns / AGES, Ordering::Relaxed);
    }
}

fn timed<T>(env: &Env, work: impl FnOnce() -> T) -> (u64, T) {
    let began_ns = env.now_ns();
    let done = work();
    (env.now_ns().saturating_sub(began_ns), done)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_page_of_slow_holes_tells_and_some_writes_later_they_are_tried_again() {
        let cost = HoleCost::default();
        (0..8).for_each(|_| cost.learn_hole(MS));
        assert_eq!(cost.bytes(), 0, "no write tells what the time is worth");
        // A MiB in two milliseconds.
        (0..64).for_each(|_| cost.learn_write(256 << 10, MS / 2));
        (0..64).for_each(|_| cost.learn_hole(MS / 50));
        let quiet = cost.bytes();
        assert!((8 << 10..12 << 10).contains(&quiet), "{quiet}");
        cost.learn_hole(100 * MS);
        assert!(cost.bytes() < quiet * 3, "one hole tells little");
        (0..8).for_each(|_| cost.learn_hole(MS));
        let slow = cost.bytes();
        assert!(slow > 200 << 10, "{slow}");
        // Without holes. Writes that are as slow as holes make holes as cheap as before.
        let writes = (1..).find(|_| {
            cost.learn_write(256 << 10, MS / 2);
            cost.bytes() < slow / 8
        });
        let writes = writes.unwrap();
        assert!((500..3000).contains(&writes), "{writes}");
        (0..64).for_each(|_| cost.learn_hole(2 * MS));
        (0..64).for_each(|_| cost.learn_write(256 << 10, 50 * MS));
        let both = cost.bytes();
        assert!(both < 16 << 10, "{both}");
    }

    #[test]
    fn calls_of_any_length_have_a_cost() {
        let cost = HoleCost::default();
        for took_ns in [0, u64::MAX, 0, u64::MAX, 1] {
            cost.learn_write(1 << 20, took_ns);
            cost.learn_hole(took_ns);
            assert!(cost.bytes() < 1 << 60);
        }
    }
}
