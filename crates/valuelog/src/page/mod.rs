//! Value pages: records of values, a directory of them, and a footer. `docs/FORMAT.md` shows the
//! bytes in the section "Value page".
//!
//! A value page is immutable. A page as born holds one birth: its values in key order. A page that
//! collecting wrote holds parts of several births, whose records are verbatim copies. The directory
//! says where each record is now.

mod build;
mod directory;
mod footer;
mod holes;
mod read;

pub use build::{PageBuilder, PageOptions, PendingPage};
pub use directory::{Directory, PartEntry};
pub(crate) use footer::FOOTER_BYTES;
pub use footer::{Footer, PART_DIRECTORY, PART_VALUE_FOOTER};
pub(crate) use holes::{expected_hole_bytes, holes};
pub(crate) use read::value_of_key;
pub use read::{CheckedPage, check_page, copy_live, record_at};
