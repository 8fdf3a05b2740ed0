//! Keyspaces: creating, dropping and clearing them, and their durable catalog.

pub mod catalog;
pub mod schema;
