//! The scheduler slice of a thread.
//!
//! A thread that wakes up waits for the running thread's slice to end. That takes milliseconds,
//! even if the running thread has a lower priority. It does not wait if the running thread asked
//! for a longer slice than its own. So a job that gives way to users asks for a long slice. In
//! return, the scheduler interrupts the job less often when no other thread wants the processor.

/// Lets other threads that wake up preempt the calling thread at once, for the thread's whole life.
/// Threads that called this function themselves do not preempt it.
///
/// Linux knows this since 6.12. A refusal by the system affects latencies only.
///
/// ```
/// std::thread::spawn(terrapin_disk::let_wakers_in).join().unwrap();
/// ```
pub fn let_wakers_in() {
    // The model checker's threads are not the system's.
    #[cfg(all(target_os = "linux", not(terrapin_shuttle)))]
    system::let_wakers_in();
}

#[cfg(all(target_os = "linux", not(terrapin_shuttle)))]
mod system {
    /// About three times the default slice, in nanoseconds.
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
        // SAFETY: the call reads `size` bytes of the structure, which lives until it returns. The
        // id 0 names the calling thread.
        let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

#[cfg(all(test, target_os = "linux", not(terrapin_shuttle)))]
mod tests {
    #[test]
    fn letting_wakers_in_keeps_the_niceness_of_a_thread() {
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
