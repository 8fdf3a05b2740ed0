//! Deliberate breakages, which show that the tests test: each is a line in the engine, at a place
//! where one might err, that asks whether its number is chosen. `crates/prove/src/mutants` lists
//! them, and what must notice each.
//!
//! Only a build with `--cfg terrapin_mutants` has them. In every other build [`active`] is `false`
//! at compile time, and not one instruction of a breakage is there.

#[cfg(terrapin_mutants)]
mod chosen {
    // Not from `crate::sync`: a static needs a constant, and no model checker looks at this.
    use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    static CHOSEN: AtomicU32 = AtomicU32::new(0);
    static REACHED: AtomicU64 = AtomicU64::new(0);

    /// Breaks the engine in one way from now on, in this whole process; 0 in none. Forgets how
    /// often a breakage was reached.
    pub fn choose(number: u32) {
        CHOSEN.store(number, Ordering::SeqCst);
        REACHED.store(0, Ordering::SeqCst);
    }

    /// How often the engine came to the chosen breakage.
    #[must_use]
    pub fn reached() -> u64 {
        REACHED.load(Ordering::SeqCst)
    }

    /// Whether the engine is to be broken in this way.
    #[inline]
    #[must_use]
    pub fn active(number: u32) -> bool {
        let active = CHOSEN.load(Ordering::Relaxed) == number;
        if active {
            REACHED.fetch_add(1, Ordering::Relaxed);
        }
        active
    }
}

#[cfg(terrapin_mutants)]
pub use chosen::{active, choose, reached};

/// Whether the engine is to be broken in this way: never, in this build.
#[cfg(not(terrapin_mutants))]
#[inline(always)]
#[must_use]
pub const fn active(_number: u32) -> bool {
    false
}
