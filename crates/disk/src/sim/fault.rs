//! Injected faults: a call on the simulated disk returns an error.

use std::io;

use terrapin_base::Error;

use super::op::Op;

/// The error that an injected fault returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// `EIO`: [`terrapin_base::ErrorKind::Io`].
    Io,
    /// `ENOSPC`: [`terrapin_base::ErrorKind::NoSpace`].
    NoSpace,
    /// `EDQUOT`, an exceeded quota: [`terrapin_base::ErrorKind::NoSpace`].
    Quota,
    /// `EMFILE`: [`terrapin_base::ErrorKind::Io`].
    TooManyFiles,
}

impl FaultError {
    /// The error of the call `op` on the file `name`.
    pub(super) fn of(self, op: Op, name: &str) -> Error {
        let number = match self {
            FaultError::Io => 5,
            FaultError::TooManyFiles => 24,
            FaultError::NoSpace => 28,
            FaultError::Quota => 122,
        };
        Error::io("simulated fault", io::Error::from_raw_os_error(number))
            .with("call", format!("{op:?}"))
            .with("file", name)
    }
}

/// A fault to inject. It says which calls match, how many matching calls pass first, and whether it
/// fails more than one call.
///
/// ```
/// use terrapin_disk::sim::{Fault, FaultError, Op};
/// // The third sync of a log segment from now on fails, and every later one too.
/// let fault = Fault::nth(3, FaultError::Io).on(Op::Sync).of("log").lasting();
/// ```
#[derive(Clone, Debug)]
pub struct Fault {
    pub(super) op: Option<Op>,
    pub(super) file: Option<String>,
    pub(super) skip: u64,
    pub(super) error: FaultError,
    pub(super) lasting: bool,
}

impl Fault {
    /// Fails the `n`-th call from now on (1 is the next), once.
    #[must_use]
    pub fn nth(n: u64, error: FaultError) -> Self {
        Fault {
            op: None,
            file: None,
            skip: n.saturating_sub(1),
            error,
            lasting: false,
        }
    }

    /// Restricts the fault to calls of this kind.
    #[must_use]
    pub fn on(mut self, op: Op) -> Self {
        self.op = Some(op);
        self
    }

    /// Restricts the fault to calls on files whose name contains this text.
    #[must_use]
    pub fn of(mut self, file: impl Into<String>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Makes the fault fail every later matching call too, until [`super::SimDisk::clear_faults`].
    #[must_use]
    pub fn lasting(mut self) -> Self {
        self.lasting = true;
        self
    }
}
