//! How far a walk reads ahead, and how far it went.

use terrapin_pages::Fill;

/// How far a walk reads ahead, and what it leaves in the cache.
#[derive(Clone, Copy, Debug)]
pub struct ReadAhead {
    /// Bytes of the first read, which has at least one block. Each further read is as long as all
    /// before it.
    pub first_bytes: u32,
    /// Most bytes of one read, and of its blocks when decoded.
    pub max_bytes: u32,
    /// How blocks enter the cache.
    pub fill: Fill,
}

impl ReadAhead {
    /// For merges, which read the whole range once. A dozen cursors of this kind hold 3 MiB.
    pub const MERGE: ReadAhead = ReadAhead {
        first_bytes: 256 << 10,
        max_bytes: 256 << 10,
        fill: Fill::No,
    };
    /// For scans, whose length is unknown.
    pub const SCAN: ReadAhead = ReadAhead {
        first_bytes: 1,
        max_bytes: 512 << 10,
        fill: Fill::Low,
    };
}

/// How far a walk went, and how far it probably goes. The walk in the next group continues from
/// there.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes of the blocks that were passed.
    pub(crate) passed_bytes: u64,
    /// Bytes that the scan passed elsewhere before the first of these blocks.
    before_bytes: u64,
    /// The sum of passed bytes at which the scan probably ends. `u64::MAX` if that is unknown.
    end_bytes: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            passed_bytes: 0,
            before_bytes: 0,
            end_bytes: u64::MAX,
        }
    }
}

impl Pace {
    /// The scan probably ends after `bytes` further bytes.
    pub(crate) fn ends_after(&mut self, bytes: u64) {
        self.end_bytes = self.passed_bytes.saturating_add(bytes);
    }

    /// Bytes that are probably wanted yet. Behind the expected end, as many as were passed since.
    /// `u64::MAX` if the end is unknown.
    pub fn rest(self) -> u64 {
        match self.end_bytes {
            u64::MAX => u64::MAX,
            end => end.abs_diff(self.passed_bytes),
        }
    }

    /// The pace of a walk beside this one that covers the share `part` of its bytes.
    pub fn part(self, part: f64) -> Self {
        Pace {
            passed_bytes: (self.passed_bytes as f64 * part) as u64,
            before_bytes: self.before_bytes + self.passed_bytes,
            end_bytes: match self.end_bytes {
                u64::MAX => u64::MAX,
                end => (end as f64 * part) as u64,
            },
        }
    }

    /// The pace that went farther.
    pub fn or_faster(self, other: Self) -> Self {
        if other.passed_bytes > self.passed_bytes {
            other
        } else {
            self
        }
    }

    /// Bytes that the scan passed.
    pub fn scan_bytes(self) -> u64 {
        self.before_bytes + self.passed_bytes
    }

    /// Whether the walk has passed as much as its largest read.
    pub fn is_long(self, ahead: ReadAhead) -> bool {
        self.passed_bytes >= u64::from(ahead.max_bytes)
    }
}
