//! A page group is immutable and contiguous on disk: blocks of sorted records, their index, a
//! filter and a footer. `docs/FORMAT.md` shows its bytes in the section "Page group".
//!
//! Groups are the leaves of a tree and the segments of its buffers. TurtleKV (§3.1) keeps both in
//! large pages and reads slices of them. Here the slice is a block with a checksum of its own.
//! Index and filter follow the blocks, so a group can be written in one pass.
//!
//! A node keeps only the [`GroupRef`]. With the [`GroupIndex`] and the filter cached, a point read
//! costs the one block that [`GroupIndex::find`] names.
//!
//! [`GroupBuilder`] takes sorted records and returns [`PendingGroup`]s. The caller allocates an
//! extent and an id, calls [`PendingGroup::place`], and writes the image that it returns.

mod build;
mod check;
mod deadlines;
mod format;
mod index;
mod model;
mod node_index;
mod pending;
mod rescue;
mod sums;

pub use build::{GROUP_TARGET_BYTES_MAX, GroupBuilder, GroupOptions};
pub use check::{GroupReport, check_group};
pub use deadlines::{DEADLINES_MAX, Deadlines, ExpiredPart};
pub use format::{
    FOOTER_BYTES, Footer, GroupRef, LOGICAL_BYTES_MAX, RECORD_BYTES_MAX, SEPARATED_BYTES_MAX,
    decode_optional_sums, encode_optional_sums,
};
pub use index::{GroupIndex, GroupSums};
pub use node_index::{BlockPlace, NodeIndex};
pub(crate) use pending::Heir;
pub use pending::PendingGroup;
pub use rescue::{RescuedPart, rescue_group};
pub use terrapin_filter::BITS_PER_KEY as FILTER_BITS_DEFAULT;

use terrapin_base::{PageId, Result};

use crate::block::{PART_FILTER, part_seed};

/// Checks a filter partition that was read from a group, for [`terrapin_filter::may_contain`].
///
/// # Errors
///
/// [`terrapin_base::ErrorKind::Corrupt`], with page and partition, if the bytes are not that
/// partition of that group.
pub fn check_filter_partition(bytes: &[u8], id: PageId, partition: u32) -> Result<()> {
    terrapin_filter::check_partition(bytes, filter_seed(id, partition))
        .map_err(|e| e.with("page", id).with("partition", partition))
}

fn filter_seed(id: PageId, partition: u32) -> u32 {
    part_seed(id, PART_FILTER | partition)
}
