//! The error type: a kind for decisions, a message and context for diagnosis.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

/// A result with Terrapin's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, by which a caller decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument is invalid, and nothing was done.
    InvalidArgument,
    /// A key, value or batch is larger than the limit that the message names.
    TooLarge,
    /// A required file is missing.
    NotFound,
    /// The directory does not exist or holds no database, and the open was not to create one.
    DatabaseNotFound,
    /// The database has no keyspace of that name, or the keyspace was dropped.
    KeyspaceNotFound,
    /// Something with this name exists already.
    AlreadyExists,
    /// Bytes on disk differ from what was written. The context says where.
    Corrupt,
    /// The directory holds something, but not a Terrapin database.
    NotADatabase,
    /// A newer Terrapin wrote this database.
    NewerFormat,
    /// Another process, or another handle in this one, has the database open.
    Locked,
    /// The operating system refused an operation.
    Io,
    /// The disk or the reserve is full, or a quota is exceeded ([`Error::is_quota`]).
    NoSpace,
    /// The operating system denied access.
    PermissionDenied,
    /// The database is open for reading only.
    ReadOnly,
    /// A condition of the write does not hold, or other writers changed what it depends on again
    /// and again. Nothing was written.
    Conflict,
    /// A merge operator failed on the operands of a key, or nobody registered it. The error names
    /// operator and key. A put or a delete of the key replaces its operands.
    Operator,
    /// A writer took the space of what a reader beside it sees, since space was short or the reader
    /// was too old. `Database::refresh` opens the newest state.
    Overtaken,
    /// The database was closed.
    Closed,
    /// A write or sync of the log failed, or a sync of the data file. Reads work, but nothing
    /// durable is written until the database is opened again.
    Poisoned,
    /// The write waited for the disk longer than the limit, and was not done.
    Stalled,
    /// The memory budget cannot hold what was requested.
    OutOfMemory,
    /// This build or structure cannot do that.
    Unsupported,
    /// A bug in Terrapin; please report it.
    Internal,
}

/// What failed, where, and what to do. One pointer in size, and cheap to clone.
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// use terrapin::{Error, ErrorKind};
/// let e = Error::corrupt("block checksum").with("page", 7).with("block", 3);
/// assert_eq!(e.kind(), ErrorKind::Corrupt);
/// assert_eq!(e.to_string(), "corrupt data: block checksum (page 7, block 3)");
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: Cow<'static, str>,
    context: Vec<(&'static str, String)>,
    source: Option<Arc<std::io::Error>>,
}

impl Error {
    /// An error of this kind.
    pub fn new(kind: ErrorKind, message: impl Into<Cow<'static, str>>) -> Self {
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: None,
        }))
    }

    /// An error about damaged bytes: [`ErrorKind::Corrupt`].
    pub fn corrupt(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Corrupt, message)
    }

    /// An error about an argument: [`ErrorKind::InvalidArgument`].
    pub fn invalid(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::InvalidArgument, message)
    }

    /// An error about a bug: [`ErrorKind::Internal`].
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Internal, message)
    }

    /// An error of the operating system. The kind follows from the error number.
    pub fn io(message: impl Into<Cow<'static, str>>, source: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match source.kind() {
            K::NotFound => ErrorKind::NotFound,
            K::PermissionDenied => ErrorKind::PermissionDenied,
            K::AlreadyExists => ErrorKind::AlreadyExists,
            K::StorageFull | K::QuotaExceeded => ErrorKind::NoSpace,
            K::ReadOnlyFilesystem => ErrorKind::PermissionDenied,
            _ => ErrorKind::Io,
        };
        Error(Arc::new(Inner {
            kind,
            message: message.into(),
            context: Vec::new(),
            source: Some(Arc::new(source)),
        }))
    }

    /// Adds a location, size or limit: `.with("file", name)`.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Self {
        Arc::make_mut(&mut self.0)
            .context
            .push((key, value.to_string()));
        self
    }

    /// The kind, by which callers decide.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The locations, sizes and limits, in the order of their addition.
    #[must_use]
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// The message without kind and context.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The operating system's error, if it refused; for its error number. The displayed text
    /// includes it.
    #[must_use]
    pub fn io_error(&self) -> Option<&std::io::Error> {
        self.0.source.as_deref()
    }

    /// Takes over the operating system's error of `cause`, if it has one.
    #[must_use]
    pub fn because_of(mut self, cause: &Error) -> Self {
        Arc::make_mut(&mut self.0).source = cause.0.source.clone();
        self
    }

    /// Whether the operating system refused because of a quota (`EDQUOT`). The file system itself
    /// may have room.
    #[must_use]
    pub fn is_quota(&self) -> bool {
        self.io_error().and_then(Errno::from_io_error) == Some(Errno::DQUOT)
    }

    /// Whether the process or the system is short of a resource (descriptors, memory). Such an
    /// error says nothing about the file.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN];
        let errno = self.io_error().and_then(Errno::from_io_error);
        errno.is_some_and(|errno| short.contains(&errno))
    }

    /// Whether data is damaged or cannot be read from the device; other data may be sound.
    ///
    /// `false` for a shortage of resources, a closed database, and data that this build cannot
    /// read.
    #[must_use]
    pub fn is_of_data(&self) -> bool {
        match self.kind() {
            ErrorKind::Corrupt | ErrorKind::TooLarge => true,
            ErrorKind::Io => !self.is_shortage(),
            _ => false,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.kind {
            ErrorKind::Corrupt => f.write_str("corrupt data: ")?,
            ErrorKind::Internal => f.write_str("internal error (please report it): ")?,
            _ => {}
        }
        f.write_str(&self.0.message)?;
        for (i, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key} {value}", if i == 0 { " (" } else { ", " })?;
        }
        if !self.0.context.is_empty() {
            f.write_str(")")?;
        }
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {self}", self.0.kind)
    }
}

impl std::error::Error for Error {
    /// The cause of the operating system's error. That error itself is part of the displayed text,
    /// so a report of the whole chain does not repeat it.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(self.io_error()?)
    }
}

/// An `io::Error` of the operating system's kind, or of the nearest one. It contains the error
/// ([`std::io::Error::get_ref`]).
///
/// ```
/// # extern crate terrapin_base as terrapin;
/// use std::io;
/// let e = io::Error::from(terrapin::Error::corrupt("block checksum"));
/// assert_eq!(e.kind(), io::ErrorKind::InvalidData);
/// assert_eq!(e.to_string(), "corrupt data: block checksum");
/// ```
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match (error.io_error(), error.kind()) {
            (Some(source), _) => source.kind(),
            (_, ErrorKind::InvalidArgument | ErrorKind::TooLarge) => K::InvalidInput,
            (
                _,
                ErrorKind::NotFound | ErrorKind::DatabaseNotFound | ErrorKind::KeyspaceNotFound,
            ) => K::NotFound,
            (_, ErrorKind::AlreadyExists) => K::AlreadyExists,
            (_, ErrorKind::Corrupt | ErrorKind::NotADatabase) => K::InvalidData,
            (_, ErrorKind::NewerFormat | ErrorKind::Unsupported) => K::Unsupported,
            (_, ErrorKind::Locked | ErrorKind::Conflict | ErrorKind::Overtaken) => K::ResourceBusy,
            (_, ErrorKind::NoSpace) => K::StorageFull,
            (_, ErrorKind::PermissionDenied | ErrorKind::ReadOnly) => K::PermissionDenied,
            (_, ErrorKind::Stalled) => K::TimedOut,
            (_, ErrorKind::OutOfMemory) => K::OutOfMemory,
            (
                _,
                ErrorKind::Io
                | ErrorKind::Operator
                | ErrorKind::Closed
                | ErrorKind::Poisoned
                | ErrorKind::Internal,
            ) => K::Other,
        };
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;
    use std::io;

    use super::*;

    #[test]
    fn a_shortage_of_resources_differs_from_a_damaged_file() {
        let is = |source| Error::io("cannot read", source).is_shortage();
        let refused = |errno: Errno| io::Error::from(errno);
        assert!(
            [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN]
                .map(refused)
                .into_iter()
                .all(is)
        );
        assert!(!is(refused(Errno::IO)) && !is(refused(Errno::NOSPC)));
        assert!(!is(io::Error::other("short read")) && !Error::internal("a bug").is_shortage());
        let of_data = |source| Error::io("cannot read", source).is_of_data();
        assert!(of_data(io::Error::other("short read")) && Error::corrupt("a node").is_of_data());
        assert!(!of_data(io::Error::from(Errno::MFILE)) && !Error::internal("a bug").is_of_data());
        assert!(!Error::new(ErrorKind::Unsupported, "a feature").is_of_data());
    }

    #[test]
    fn a_quota_differs_from_a_full_disk_also_in_derived_errors() {
        let refused = |errno: Errno| Error::io("cannot allocate", io::Error::from(errno));
        let (quota, full) = (refused(Errno::DQUOT), refused(Errno::NOSPC));
        assert_eq!(
            (quota.kind(), full.kind()),
            (ErrorKind::NoSpace, ErrorKind::NoSpace)
        );
        assert!(quota.is_quota() && !full.is_quota());
        let follows = |cause| Error::new(ErrorKind::NoSpace, "no room").because_of(cause);
        assert!(follows(&quota).is_quota() && !follows(&full).is_quota());
        let bug = Error::internal("a bug");
        assert!(!follows(&bug).is_quota());
        assert_eq!(
            io::Error::from(follows(&quota)).kind(),
            io::ErrorKind::QuotaExceeded
        );
    }

    /// The text that a report of a whole chain prints.
    fn chain(error: &dyn std::error::Error) -> String {
        match error.source() {
            Some(source) => format!("{error}: {}", chain(source)),
            None => error.to_string(),
        }
    }

    #[test]
    fn a_chain_of_errors_tells_the_systems_error_once() {
        let refused = || io::Error::from_raw_os_error(28);
        let error = Error::io("cannot write", refused()).with("file", "f");
        let said = format!("cannot write (file f): {}", refused());
        assert_eq!(chain(&error), said);
        assert_eq!(error.io_error().and_then(io::Error::raw_os_error), Some(28));
        let deeper = io::Error::other(io::Error::other(Error::corrupt("deep")));
        let error = Error::io("cannot write", deeper);
        assert_eq!(chain(&error), "cannot write: corrupt data: deep");
        assert!(Error::corrupt("alone").source().is_none());
    }

    #[test]
    fn an_io_error_has_the_nearest_kind_and_contains_the_error() {
        for (error, kind) in [
            (
                Error::io("cannot write", io::ErrorKind::BrokenPipe.into()),
                io::ErrorKind::BrokenPipe,
            ),
            (Error::corrupt("c"), io::ErrorKind::InvalidData),
            (
                Error::new(ErrorKind::Locked, "l"),
                io::ErrorKind::ResourceBusy,
            ),
            (Error::internal("i"), io::ErrorKind::Other),
        ] {
            let made = io::Error::from(error.clone());
            assert_eq!(made.kind(), kind);
            assert_eq!(chain(&made), error.to_string());
            let inside = made.get_ref().and_then(|e| e.downcast_ref::<Error>());
            assert_eq!(inside.map(Error::kind), Some(error.kind()));
        }
    }
}
