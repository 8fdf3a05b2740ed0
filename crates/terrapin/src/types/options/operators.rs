//! Merge operators in options: those that the user registered, and the name that a keyspace stores.

use std::fmt;
use std::sync::Arc;

use terrapin_base::{Error, MergeOperator, Operator, Result};

use super::settings::Settings;
use super::{KeyspaceOptions, Options};

/// Longest name of a merge operator in bytes.
const NAME_BYTES_MAX: usize = 64;

/// The name of a merge operator: 1 to 64 bytes of UTF-8 without control characters.
///
/// ```
/// use terrapin::OperatorName;
/// assert_eq!(OperatorName::from("add-i64").as_str(), "add-i64");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperatorName {
    bytes: [u8; NAME_BYTES_MAX],
    count: u8,
}

impl OperatorName {
    /// The name. Empty if it was made from a string that is no name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = &self.bytes[..usize::from(self.count)];
        std::str::from_utf8(bytes).unwrap_or_default()
    }

    pub(super) fn check(self) -> Result<()> {
        match self.count {
            0 => Err(Error::invalid(
                "the name of a merge operator has 1 to 64 bytes and no control characters \
                 (merge_operator)",
            )),
            _ => Ok(()),
        }
    }
}

/// A string that is no name gives one that [`KeyspaceOptions::check`] refuses.
impl From<&str> for OperatorName {
    fn from(name: &str) -> Self {
        let mut bytes = [0; NAME_BYTES_MAX];
        let is_name = name.len() <= NAME_BYTES_MAX && !name.chars().any(char::is_control);
        let name = if is_name { name.as_bytes() } else { &[] };
        bytes[..name.len()].copy_from_slice(name);
        OperatorName {
            bytes,
            count: name.len() as u8,
        }
    }
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The operators that a user registered.
#[derive(Clone, Default)]
pub(crate) struct Operators {
    own: Vec<Arc<dyn MergeOperator>>,
    /// The operator of keyspaces that name none, in tests.
    default: Option<OperatorName>,
}

impl Operators {
    pub fn set_default(&mut self, name: &str) {
        self.default = Some(OperatorName::from(name));
    }
}

impl fmt::Debug for Operators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.own.iter().map(|operator| operator.name());
        f.debug_list().entries(names).finish()
    }
}

impl Options {
    /// Registers a merge operator of the user's own. Keyspaces name it by its
    /// [`MergeOperator::name`] ([`KeyspaceOptions::merge_operator`]). The built-in operators need
    /// no registration. One that is registered comes before a built-in one of the same name.
    ///
    /// A database opens without an operator that its keyspaces name. Merges there are then refused,
    /// and reads of keys with operands fail, with [`ErrorKind::Operator`](crate::ErrorKind).
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-own-operator-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// use terrapin::{KeyspaceOptions, MergeOperator, Options, Outcome, Result};
    /// struct Longest;
    /// impl MergeOperator for Longest {
    ///     fn name(&self) -> &str {
    ///         "longest"
    ///     }
    ///     fn apply(
    ///         &self,
    ///         _key: &[u8],
    ///         existing: Option<&[u8]>,
    ///         operand: &[u8],
    ///         out: &mut Vec<u8>,
    ///     ) -> Result<Outcome> {
    ///         let existing = existing.unwrap_or_default();
    ///         let is_longer = operand.len() > existing.len();
    ///         out.extend_from_slice(if is_longer { operand } else { existing });
    ///         Ok(Outcome::Value)
    ///     }
    /// }
    /// let database = Options::new().merge_operator(Longest).open(&directory)?;
    /// let options = KeyspaceOptions::new().merge_operator("longest");
    /// let words = database.create_keyspace("words", options)?;
    /// words.merge("animal", "fox")?;
    /// words.merge("animal", "turtle")?;
    /// words.merge("animal", "cat")?;
    /// assert_eq!(words.get("animal")?.unwrap(), "turtle");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn merge_operator(mut self, operator: impl MergeOperator + 'static) -> Self {
        self.operators.own.insert(0, Arc::new(operator));
        self
    }
}

impl Settings {
    /// The merge operator of a keyspace.
    pub fn operator_of(&self, options: &KeyspaceOptions) -> Operator {
        let name = options.merge_operator.or(self.operators.default);
        name.map_or_else(Operator::default, |name| {
            let prefix_bytes = options.key_form().prefix_bytes();
            Operator::of_prefixed(name.as_str(), &self.operators.own, prefix_bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_are_no_names_are_refused() {
        let check = |name: &str| KeyspaceOptions::new().merge_operator(name).check();
        for name in ["add-i64", "größer", &"n".repeat(64)] {
            check(name).unwrap();
            assert_eq!(OperatorName::from(name).as_str(), name);
        }
        for name in ["", "a\nb", &"n".repeat(65)] {
            let error = check(name).unwrap_err();
            assert!(error.to_string().contains("1 to 64 bytes"), "{error}");
        }
    }
}
