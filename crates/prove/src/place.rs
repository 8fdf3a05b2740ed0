//! Whether an error of damage names a file, page or place in the log. A person who repairs a store,
//! or must say what is lost, needs that first.

/// The names that an error's context may give a place.
const KEYS: [&str; 6] = [
    "file",
    "directory",
    "page",
    "lsn",
    "record at LSN",
    "slot 0",
];

/// Whether an error's text names a place in its context.
#[must_use]
pub fn names_a_place(text: &str) -> bool {
    KEYS.iter().any(|key| {
        let mut found = text.match_indices(key);
        found.any(|(at, _)| {
            let before = text[..at].chars().next_back();
            let after = text[at + key.len()..].chars().next();
            let begins = before == Some('(') || text[..at].ends_with(", ");
            begins && after == Some(' ')
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrapin::{Error, ErrorKind};

    #[test]
    fn a_place_is_distinguished_from_a_size() {
        let error = Error::new(ErrorKind::Corrupt, "a page of a file");
        assert!(!names_a_place(&error.to_string()));
        let sized = error
            .with("first", 4096)
            .with("in", "file")
            .with("pages", 1);
        assert!(!names_a_place(&sized.to_string()), "{sized}");
        assert!(names_a_place(&sized.with("file", "log-1").to_string()));
        let of_log = Error::new(ErrorKind::Corrupt, "a record").with("record at LSN", 7);
        assert!(names_a_place(&of_log.to_string()));
    }
}
