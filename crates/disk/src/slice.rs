//! How long a thread likes to compute at a stretch. Who wakes up on a processor where somebody
//! computes waits until that one has used up its slice, a few milliseconds or until the next tick
//! of the clock, however low its priority is: unless it asked for a longer slice than the one who
//! wakes. So a thread that gives way asks for a long one. What that brings itself is that it is
//! interrupted less where nobody else wants anything.

/// Lets threads that wake up have the processor of the calling thread at once, for as long as that
/// lives: those that did not call this.
///
/// What the system refuses or does not know (Linux does since 6.12) changes nothing but latencies.
///
/// ```
/// std::thread::spawn(terrapin_disk::let_wakers_in).join().unwrap();
/// ```
pub fn let_wakers_in() {
    // A checker's thread is not the system's.
    #[cfg(all(target_os = "linux", not(terrapin_shuttle)))]
    system::let_wakers_in();
}

#[cfg(all(target_os = "linux", not(terrapin_shuttle)))]
mod system {
    /// Some three times what the system gives a thread that asked for nothing.
    const SLICE_NS: u64 = 10_000_000;

    pub(super) fn let_wakers_in() {
        let Ok(nice) = rustix::process::nice(0) else {
            return;
        };
        let attributes = libc::sched_attr {
            size: size_of::<libc::sched_attr>() as u32,
            sched_policy: 0,
            sched_flags: libc::SCHED_FLAG_KEEP_POLICY as u64,
            sched_nice: nice,
            sched_priority: 0,
            sched_runtime: SLICE_NS,
            sched_deadline: 0,
            sched_period: 0,
        };
        // SAFETY: the call reads `size` bytes of the structure, which lives until it returns; 0 is
        // the calling thread.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(all(test, target_os = "linux", not(terrapin_shuttle)))]
mod tests {
    #[test]
    fn a_thread_that_lets_wakers_in_stays_as_nice_as_it_was() {
        let (before, after) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let before = rustix::process::nice(3).unwrap();
                super::let_wakers_in();
                (before, rustix::process::nice(0).unwrap())
            });
            thread.join().unwrap()
        });
        assert_eq!(before, after);
        assert!(before >= 3);
    }
}
