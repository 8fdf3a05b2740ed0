//! How tests register a structure besides those of a release.

use std::sync::Arc;

use terrapin_base::Budget;
use terrapin_pages::PageStore;
use terrapin_structure::Structure;

/// What a structure is made from.
pub struct StructureParts<'a> {
    /// The data file.
    pub store: &'a Arc<PageStore>,
    /// The budget that merges charge their memory to.
    pub budget: &'a Arc<Budget>,
    /// The maximum number of children of a node, if a test sets it.
    pub fanout: Option<usize>,
}

/// Makes one structure at open.
pub type StructureMaker = fn(&StructureParts<'_>) -> Arc<dyn Structure>;
