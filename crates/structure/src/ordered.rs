//! What structures with ordered keys do: scans in both directions, and estimates of ranges.

use std::ops::Bound;

use terrapin_base::Result;

use crate::Erased;
use crate::batch::{Batch, Filled};

/// A range of keys. Both ends are bounds over byte strings.
pub type KeyBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The direction of a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From small keys to large.
    Forward,
    /// From large keys to small.
    Backward,
}

/// Approximate content of a key range. Correctness must never depend on an estimate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Records, including tombstones.
    pub records: u64,
    /// Key and value bytes.
    pub bytes: u64,
}

/// The part of a [`crate::Version`] that keeps its keys in order.
pub trait Ordered {
    /// Starts a scan of the live records of a range.
    fn scan(&self, bounds: KeyBounds<'_>, direction: Direction) -> Result<Box<dyn Scan>> {
        self.scan_expecting(bounds, direction, 0)
    }
    /// Starts a scan from which the caller expects to take about `expected` records; 0 means
    /// unknown. A wrong expectation costs time only.
    fn scan_expecting(
        &self,
        bounds: KeyBounds<'_>,
        direction: Direction,
        expected: usize,
    ) -> Result<Box<dyn Scan>>;
    /// Estimates the content of a range. Reads nodes only.
    fn estimate(&self, bounds: KeyBounds<'_>) -> Result<Estimate>;
    /// The part of a range that a merge can give up without reading its records
    /// ([`crate::MergeInput::erased`]). `None` if that part holds less than `bytes_min` bytes of
    /// keys and values, or if the structure reads every record that it deletes. What is left of the
    /// range at both ends gets ordinary deletes. Reads nodes, and indexes at the ends.
    fn erasable(&self, lo: &[u8], hi: Option<&[u8]>, bytes_min: u64) -> Result<Option<Erased>> {
        let _ = (lo, hi, bytes_min);
        Ok(None)
    }
}

/// A scan over live records, forward or backward. Its position is between two records. Calls of
/// [`Scan::next`] and [`Scan::fill`] may be mixed.
pub trait Scan: Send {
    /// Returns the next record, valid until the next call. Returns `None` at the end and after an
    /// error. Of a record that only [`crate::Version::get`] resolves, it returns the key alone.
    fn next(&mut self) -> Result<Option<(&[u8], &[u8])>>;
    /// Appends the next records to a batch. It stops when the batch is full, at the end, or before
    /// the first record outside `until`.
    ///
    /// `until` is an upper bound for a forward scan and a lower bound for a backward scan. The call
    /// reads nothing when the batch is full. It also reads nothing only to find out what follows
    /// the batch's last record. A read that it needs may include blocks that the caller will
    /// probably ask for next.
    ///
    /// Values are left out if [`Batch::keys_only`] is set. Records may stay in their blocks if
    /// [`Batch::lends`] is set. After an error the scan is at its end.
    fn fill(&mut self, until: Bound<&[u8]>, batch: &mut Batch) -> Result<Filled>;
    /// After [`Filled::Unresolved`], appends the key of the next record to `key`. Returns the
    /// handle of its value, if the record has a handle and no operands.
    fn unresolved(&self, key: &mut Vec<u8>) -> Option<&[u8]>;
    /// Steps over the next record or tombstone if it has this key. Allowed only after
    /// [`Filled::Reached`] or [`Filled::End`], with the key of the bound that [`Scan::fill`] got,
    /// and after [`Filled::Unresolved`], with the key of the record.
    fn skip(&mut self, key: &[u8]);
    /// Moves on to a key: forward to the first record at or above it, backward to the last record
    /// at or below it. A key that the scan has passed already changes nothing. Costs what starting
    /// a scan costs, unless the key is in the block that the scan is in.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// The number of sorted runs in which the scan began, without the run that holds most records.
    /// Each of them costs the scan a visit to a block or two.
    fn runs(&self) -> usize;
    /// The number of tombstones passed since the last call, other than those between returned
    /// records. They cost time and returned nothing.
    fn take_passed(&mut self) -> u64;
}
