//! A memtable of records of 128 bytes with ascending keys, for examples that merge many of them.

use std::sync::Arc;

use terrapin_base::{Message, Result};
use terrapin_structure::{Erased, Estimate, MergeInput, MessageCursor};

/// Bytes of a key.
pub const KEY_BYTES: usize = 8;
/// Bytes of a record, key and value.
pub const RECORD_BYTES: usize = 128;

/// Puts of these keys, which ascend.
pub struct Memtable {
    keys: Vec<u64>,
    /// How many of a thousand keys are in the tree already.
    replacing_permille: u16,
}

struct Cursor {
    memtable: Arc<Memtable>,
    at: usize,
    end: usize,
    key: [u8; KEY_BYTES],
}

impl Memtable {
    /// Puts of these keys, in any order.
    pub fn of(mut keys: Vec<u64>, replacing_permille: u16) -> Self {
        keys.sort_unstable();
        keys.dedup();
        Memtable {
            keys,
            replacing_permille,
        }
    }

    fn place(&self, key: Option<&[u8]>, otherwise: usize) -> usize {
        let Some(key) = key else { return otherwise };
        self.keys.partition_point(|k| k.to_be_bytes()[..] < *key)
    }
}

impl Cursor {
    fn load(&mut self) {
        if self.at < self.end {
            self.key = self.memtable.keys[self.at].to_be_bytes();
        }
    }
}

impl MessageCursor for Cursor {
    fn key(&self) -> Option<&[u8]> {
        (self.at < self.end).then_some(&self.key[..])
    }

    fn message(&self) -> Message<'_> {
        Message::Put(&[7; RECORD_BYTES - KEY_BYTES])
    }

    fn advance(&mut self) -> Result<()> {
        self.at += 1;
        self.load();
        Ok(())
    }
}

impl MergeInput for Memtable {
    fn cursor(
        self: Arc<Self>,
        lo: Option<&[u8]>,
        hi: Option<&[u8]>,
    ) -> Result<Box<dyn MessageCursor>> {
        let (at, end) = (self.place(lo, 0), self.place(hi, self.keys.len()));
        let mut cursor = Cursor {
            memtable: self,
            at,
            end,
            key: [0; KEY_BYTES],
        };
        cursor.load();
        Ok(Box::new(cursor))
    }

    fn estimate(&self, lo: Option<&[u8]>, hi: Option<&[u8]>) -> Estimate {
        let from = self.place(lo, 0);
        let records = self.place(hi, self.keys.len()).saturating_sub(from) as u64;
        Estimate {
            records,
            bytes: records * RECORD_BYTES as u64,
        }
    }

    fn erased(&self) -> &[Erased] {
        &[]
    }

    fn replacing_permille(&self) -> u16 {
        self.replacing_permille
    }
}

/// A permutation of 64-bit numbers: keys are uniform and never repeat.
pub fn scramble(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
