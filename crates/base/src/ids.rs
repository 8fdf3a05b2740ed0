//! Ids as newtypes: a log position is not a count of bytes, a page is not a keyspace.

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
    /// Log sequence number: the byte offset in the log at which a record starts; the version number
    /// of a write. Bounds on LSNs are exclusive throughout: "before `x`" means every record that
    /// starts below `x`.
    Lsn(u64)
);
id!(
    /// A keyspace's number; never used again after the keyspace is dropped.
    KeyspaceId(u32)
);
id!(
    /// Number of the checkpoint that a superblock, a state or a page belongs to.
    Generation(u64)
);
id!(
    /// One life of the log: every recovery raises it durably, so that bytes of an earlier life
    /// never count again.
    Incarnation(u32)
);
id!(
    /// Name of a page group, node or catalog page: unique over the database's whole life, never
    /// reused. The incarnation that wrote it stands in the upper 24 bits, a counter in the
    /// lower 40.
    PageId(u64)
);

impl KeyspaceId {
    /// The keyspace that every database has.
    pub const DEFAULT: KeyspaceId = KeyspaceId(0);
}

impl Incarnation {
    /// The last one: page ids have no room for others.
    pub const MAX: Incarnation = Incarnation((1 << 24) - 1);
}

impl PageId {
    /// The last counter, all of whose bits are set.
    pub const COUNTER_MAX: u64 = (1 << 40) - 1;

    /// The id of the `counter`-th page of an incarnation. Panics when either part is out of room,
    /// which takes 2^24 recoveries or 2^40 pages within one.
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
