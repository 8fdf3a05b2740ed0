//! [`Operator`]: the merge operator of a keyspace, as the engine calls it. It catches what a user's
//! code may do: errors, panics, and results that are too long.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{MergeOperator, Outcome, built_in_operator};
use crate::{Error, ErrorKind, Result, VALUE_BYTES_MAX};

/// The merge operator of a keyspace: none, one of this name, or a name that nobody registered.
#[derive(Clone, Default)]
pub struct Operator(Option<Arc<Named>>);

struct Named {
    name: Box<str>,
    code: Option<Code>,
    /// Bytes in front of the user's key in the keys that callers hand in.
    prefix_bytes: usize,
}

enum Code {
    BuiltIn(&'static dyn MergeOperator),
    Own(Arc<dyn MergeOperator>),
}

impl Operator {
    /// The operator of a name. `own` are those that the user registered; they come before built-in
    /// ones of the same name.
    #[must_use]
    pub fn named(name: &str, own: &[Arc<dyn MergeOperator>]) -> Self {
        Self::of_prefixed(name, own, 0)
    }

    /// Like [`Operator::named`], for a keyspace whose stored keys have bytes in front of the users'
    /// keys. The operator sees users' keys.
    #[must_use]
    pub fn of_prefixed(name: &str, own: &[Arc<dyn MergeOperator>], prefix_bytes: usize) -> Self {
        let own = own.iter().find(|operator| operator.name() == name);
        let code = match own {
            Some(operator) => Some(Code::Own(operator.clone())),
            None => built_in_operator(name).map(Code::BuiltIn),
        };
        Operator(Some(Arc::new(Named {
            name: name.into(),
            code,
            prefix_bytes,
        })))
    }

    /// The operator's name; `None` without an operator.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.0.as_ref().map(|named| &*named.name)
    }

    /// Whether the operator can be called.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.code().is_some()
    }

    /// The user's key of a stored key.
    fn given<'a>(&self, stored: &'a [u8]) -> &'a [u8] {
        let prefix_bytes = self.0.as_ref().map_or(0, |named| named.prefix_bytes);
        stored.get(prefix_bytes..).unwrap_or(stored)
    }

    fn code(&self) -> Option<&dyn MergeOperator> {
        match self.0.as_ref()?.code.as_ref()? {
            Code::BuiltIn(operator) => Some(*operator),
            Code::Own(operator) => Some(&**operator),
        }
    }

    /// Checks that the operator is there and takes an operand.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidArgument`] without an operator, and for an operand that it refuses;
    /// [`ErrorKind::Operator`] if nobody registered it.
    pub fn check(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        if self.0.is_none() {
            return Err(Error::invalid(
                "the keyspace has no merge operator: create it with KeyspaceOptions::merge_operator",
            ));
        }
        let key = self.given(key);
        self.called(key, |operator| operator.check(key, operand))
    }

    /// Makes the value that an operand makes of a value. `out` gets it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Operator`], with the operator's name and the key.
    pub fn apply(
        &self,
        key: &[u8],
        existing: Option<&[u8]>,
        operand: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Outcome> {
        out.clear();
        let key = self.given(key);
        let outcome = self.called(key, |operator| operator.apply(key, existing, operand, out));
        let outcome = outcome.map_err(|error| self.failed(key, &error))?;
        if outcome == Outcome::Value && out.len() > VALUE_BYTES_MAX {
            let message = "the merge operator made a value longer than the limit";
            return Err(self.placed(Error::new(ErrorKind::Operator, message), key));
        }
        Ok(outcome)
    }

    /// Makes one operand of two, the older one first. `out` gets it. Returns false to keep both.
    pub fn combine(&self, key: &[u8], older: &[u8], newer: &[u8], out: &mut Vec<u8>) -> bool {
        out.clear();
        let key = self.given(key);
        let combined = self.called(key, |operator| operator.combine(key, older, newer, out));
        matches!(combined, Ok(true)) && out.len() <= VALUE_BYTES_MAX
    }

    /// Calls the operator's code. A panic is an error.
    fn called<R>(
        &self,
        key: &[u8],
        call: impl FnOnce(&dyn MergeOperator) -> Result<R>,
    ) -> Result<R> {
        let Some(operator) = self.code() else {
            let message = "the keyspace's merge operator is not registered: open the database \
                           with it (Options::merge_operator)";
            return Err(self.placed(Error::new(ErrorKind::Operator, message), key));
        };
        // What the call has seen of `out` and of the arguments is not looked at after a panic.
        catch_unwind(AssertUnwindSafe(|| call(operator))).unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::Operator, "the merge operator panicked");
            Err(self.placed(error, key))
        })
    }

    /// The error of a read whose operands do not apply.
    #[cold]
    fn failed(&self, key: &[u8], cause: &Error) -> Error {
        if cause.kind() == ErrorKind::Operator {
            return cause.clone();
        }
        let message = "the merge operator does not apply an operand: put or delete the key to \
                       replace its operands";
        let error = self.placed(Error::new(ErrorKind::Operator, message), key);
        error.with("cause", cause)
    }

    /// The error of a read of operands that were given up.
    #[cold]
    pub(super) fn lost(&self, key: &[u8]) -> Error {
        let message = "the key's operands neither combined nor applied, and exceeded the limit: \
                       put or delete the key to replace them";
        let error = self.placed(Error::new(ErrorKind::Operator, message), key);
        error.with("limit", super::STACK_BYTES_MAX)
    }

    #[cold]
    fn placed(&self, error: Error, key: &[u8]) -> Error {
        let error = error.with("operator", self.name().unwrap_or("none"));
        error.with("key", key.escape_ascii())
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Operator").field(&self.name()).finish()
    }
}
