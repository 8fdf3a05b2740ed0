//! Files of the operating system.

mod mapping;

pub(crate) use mapping::Mapping;
