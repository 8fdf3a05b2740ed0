//! Keyspaces: creating, dropping and clearing them, their durable catalog, which of them are
//! written.

pub mod catalog;
pub mod schema;
