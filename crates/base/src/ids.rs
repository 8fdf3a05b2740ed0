//! Ids as newtypes, so that the compiler refuses to mix them.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

id!(
    /// Log sequence number: the byte offset in the log at which a record starts, or an operation
    /// in it, and the version number of a write. Bounds on LSNs are exclusive: "before `x`" means
    /// every record that starts below `x`. Bounds lie between records.
    Lsn(u64)
);
id!(
    /// A keyspace's number. No later keyspace gets the number of a dropped one.
    KeyspaceId(u32)
);
id!(
    /// The number of the checkpoint that a superblock, a state or a page belongs to.
    Generation(u64)
);
id!(
    /// The number of one life of the log. Every recovery raises it durably, so that bytes of an
    /// earlier life are not taken for newer ones.
    Incarnation(u32)
);
id!(
    /// The name of a page group, node or catalog page. It is unique in the database and never
    /// reused. The upper 24 bits are the incarnation that wrote the page, the lower 40 a counter.
    PageId(u64)
);

impl KeyspaceId {
    /// The keyspace that every database has.
    pub const DEFAULT: KeyspaceId = KeyspaceId(0);
}

impl Incarnation {
    /// The last incarnation: page ids have no room for a higher one.
    pub const MAX: Incarnation = Incarnation((1 << 24) - 1);
}

impl PageId {
    /// The highest counter.
    pub const COUNTER_MAX: u64 = (1 << 40) - 1;

    /// The id of the `counter`-th page of an incarnation. Panics if a part is too large, which
    /// takes 2^24 recoveries, or 2^40 pages in one incarnation.
    #[must_use]
    pub fn new(incarnation: Incarnation, counter: u64) -> Self {
        assert!(
            incarnation <= Incarnation::MAX && counter <= Self::COUNTER_MAX,
            "page ids exhausted"
        );
        PageId(u64::from(incarnation.0) << 40 | counter)
    }

    /// The incarnation that wrote the page.
    #[must_use]
    pub fn incarnation(self) -> Incarnation {
        Incarnation(u32::try_from(self.0 >> 40).unwrap_or(u32::MAX))
    }
}
