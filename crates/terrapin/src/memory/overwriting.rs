//! What share of a keyspace's writes replaces something. Some keys of each memtable are asked for
//! in the tree that it is merged into: a tree itself learns what replaces what only as records
//! reach its leaves, and until then a store that is overwritten looks like one that grows.

use terrapin_base::sync::{AtomicU64, Mutex, Ordering};

/// Fewer answers say nothing.
const TELLING: u64 = 8;
/// More than that are remembered by half.
const REMEMBERED: u64 = 64;
/// The share in thousandths from which on data counts as overwritten.
const OVERWRITTEN_PERMILLE: u64 = 250;

/// See the head of this file.
pub(crate) struct Replacing {
    /// `u64::MAX` until it is known.
    permille: AtomicU64,
    answers: Mutex<Answers>,
}

/// How often it was asked whether a key is there, and how often it was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    pub asked: u64,
    pub found: u64,
}

impl Default for Replacing {
    fn default() -> Self {
        Replacing {
            permille: AtomicU64::new(u64::MAX),
            answers: Mutex::default(),
        }
    }
}

impl Replacing {
    /// Takes note of what was found of one memtable's keys.
    pub fn note(&self, answers: Answers) {
        let mut sum = self.answers.lock();
        if sum.asked + answers.asked > REMEMBERED {
            sum.asked /= 2;
            sum.found /= 2;
        }
        sum.asked += answers.asked;
        sum.found += answers.found;
        if sum.asked >= TELLING {
            let permille = sum.found.saturating_mul(1000) / sum.asked;
            self.permille.store(permille, Ordering::Relaxed);
        }
    }

    /// The share in thousandths; none until enough was asked.
    pub fn permille(&self) -> Option<u16> {
        u16::try_from(self.permille.load(Ordering::Relaxed)).ok()
    }

    /// Whether most of what is written is known to be new.
    pub fn is_growing(&self) -> bool {
        self.permille.load(Ordering::Relaxed) < OVERWRITTEN_PERMILLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_told_from_overwriting_by_one_memtable_and_back_by_two() {
        let replacing = Replacing::default();
        let note = |asked, found| replacing.note(Answers { asked, found });
        note(7, 0);
        assert!(!replacing.is_growing() && replacing.permille().is_none());
        note(25, 1);
        assert!(replacing.is_growing());
        note(32, 0);
        note(32, 32);
        assert!(!replacing.is_growing());
        note(32, 32);
        note(32, 32);
        assert!(
            replacing.permille() > Some(800),
            "{:?}",
            replacing.permille()
        );
        note(32, 0);
        assert!(!replacing.is_growing());
        note(32, 0);
        assert!(replacing.is_growing());
    }
}
