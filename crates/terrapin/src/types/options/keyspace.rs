//! [`KeyspaceOptions`]: what the database stores for each keyspace.

use std::time::Duration;

use terrapin_base::expiry::{self, DEADLINE_MS_MAX};
use terrapin_base::{Error, Result, mutant};
use terrapin_structure::MergeOptions;

use super::settings::Settings;
use super::{CheckpointDistance, Compression, OperatorName};
use crate::types::key_form::{KeyForm, KeyHash};
use crate::types::structure_kind::StructureKind;

/// The smallest and the largest filter, in bits for each record. 0 is allowed too: no filter.
pub const FILTER_BITS: std::ops::RangeInclusive<u32> = 6..=20;
/// The smallest and the largest bound of space amplification, in per cent.
const AMPLIFICATION_PERCENT: std::ops::RangeInclusive<u32> = 110..=10_000;
/// The smallest and the largest threshold of separation, in bytes. 0 is allowed too: tests separate
/// every value.
const SEPARATE_FROM: std::ops::RangeInclusive<u32> = 512..=64 << 10;

/// The smallest and the largest number of sorted runs.
const RUNS: std::ops::RangeInclusive<u32> = 2..=64;

/// The size to which the data of a keyspace may grow on disk under overwriting, as a multiple of
/// the data ([`KeyspaceOptions::space_amplification`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpaceAmplification {
    /// At most this many per cent of the data: 110 to 10,000. 130 means 1.3 times the data.
    Percent(u32),
    /// No bound. The data then grew to about 1.9 times its size in our measurements, and the engine
    /// wrote fewer bytes.
    Unbounded,
}

/// A factor such as 1.3, rounded to whole per cent. Factors from 1.1 to 100 are valid. Others give
/// a value that [`crate::Database::create_keyspace`] and [`crate::Keyspace::set_options`] refuse.
///
/// ```
/// use terrapin::SpaceAmplification;
/// assert_eq!(SpaceAmplification::from(1.3), SpaceAmplification::Percent(130));
/// ```
impl From<f64> for SpaceAmplification {
    fn from(factor: f64) -> Self {
        // A cast of a float saturates, and makes NaN 0.
        SpaceAmplification::Percent((factor * 100.0).round() as u32)
    }
}

impl SpaceAmplification {
    /// The bound in per cent; none if there is no bound.
    pub(crate) fn percent(self) -> Option<u32> {
        match self {
            SpaceAmplification::Percent(percent) => Some(percent),
            SpaceAmplification::Unbounded => None,
        }
    }

    /// Whether the bound is one that the engine keeps.
    pub(crate) fn is_valid(self) -> bool {
        let percent = self.percent();
        percent.is_none_or(|percent| AMPLIFICATION_PERCENT.contains(&percent))
    }
}

/// Options of one keyspace. The database stores those that were set: they survive a close, a crash
/// and a change of the database's own options ([`crate::Options`]).
///
/// An option that is `None` follows the database. [`crate::Keyspace::set_options`] changes all
/// options at any time, but the merge operator, and the structure beyond what it says. χ counts at
/// once. The structure, compression, filters and space amplification count from the next checkpoint
/// on. They apply to what merges
/// write from then on, so existing data stays as it is until a merge rewrites it.
///
/// ```
/// # fn main() -> terrapin::Result<()> {
/// # let name = format!("terrapin-doc-keyspace-options-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let database = terrapin::Database::open(&directory)?;
/// use terrapin::{Compression, KeyspaceOptions, SpaceAmplification};
/// let options = KeyspaceOptions::new()
///     .compression(Compression::Lz4)
///     .filter_bits(8)
///     .space_amplification(SpaceAmplification::from(2.0));
/// let events = database.create_keyspace("events", options)?;
/// events.set_options(events.options()?.filter_bits(None))?; // as many as the database
/// assert_eq!(events.options()?.compression, Some(Compression::Lz4));
/// # database.close()?;
/// # let _ = std::fs::remove_dir_all(directory);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyspaceOptions {
    /// The structure that holds the records on disk. It can change between
    /// [`StructureKind::Leveled`] and [`StructureKind::Tiered`]. Default
    /// [`StructureKind::Leveled`].
    pub structure: StructureKind,
    /// χ of the keyspace. `None` means the χ of the database
    /// ([`Options::checkpoint_distance`](crate::Options::checkpoint_distance)).
    pub checkpoint_distance: Option<CheckpointDistance>,
    /// Compression of new blocks. `None` means that of the database
    /// ([`Options::compression`](crate::Options::compression)).
    pub compression: Option<Compression>,
    /// Bits of filter for each record: 6 to 20, or 0 for no filters. `None` means those of the
    /// database ([`Options::filter_bits`](crate::Options::filter_bits)).
    pub filter_bits: Option<u32>,
    /// The bound of space amplification. `None` means that of the database
    /// ([`Options::space_amplification`](crate::Options::space_amplification)).
    pub space_amplification: Option<SpaceAmplification>,
    /// Values of at least this many bytes are kept out of the tree. `None` means no value is.
    pub separate_from: Option<u32>,
    /// The name of the merge operator. `None` means no operator: merges are refused.
    pub merge_operator: Option<OperatorName>,
    /// Sorted runs of [`StructureKind::Tiered`]: 2 to 64. `None` means 16, and 8 while the keyspace
    /// is read as often as written.
    pub runs: Option<u32>,
    /// How long values last that are put without a time of their own. `None` means for ever.
    pub ttl: Option<Duration>,
    /// How a hashed keyspace hashes its keys. The creation of the keyspace draws it, and it cannot
    /// change.
    #[doc(hidden)]
    pub key_hash: Option<KeyHash>,
}

impl KeyspaceOptions {
    /// The defaults: all options follow the database.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The structure that holds the records on disk. Default [`StructureKind::Leveled`]. It is
    /// chosen when the keyspace is created. It can change between [`StructureKind::Leveled`] and
    /// [`StructureKind::Tiered`] at any time: that rewrites nothing, and counts from the next
    /// checkpoint on.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-structure-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::{KeyspaceOptions, StructureKind};
    /// let tiered = KeyspaceOptions::new().structure(StructureKind::Tiered);
    /// let metrics = database.create_keyspace("metrics", tiered)?;
    /// metrics.put("load", "0.7")?;
    /// // The load is over, and readers come.
    /// metrics.set_options(metrics.options()?.structure(StructureKind::Leveled))?;
    /// assert_eq!(metrics.get("load")?.unwrap(), "0.7");
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn structure(mut self, structure: impl Into<StructureKind>) -> Self {
        self.structure = structure.into();
        self
    }

    /// χ of the keyspace. `None` (the default) means the χ of the database
    /// ([`Options::checkpoint_distance`](crate::Options::checkpoint_distance)).
    #[must_use]
    pub fn checkpoint_distance(mut self, distance: impl Into<Option<CheckpointDistance>>) -> Self {
        self.checkpoint_distance = distance.into();
        self
    }

    /// Compression of the blocks that merges of this keyspace write. `None` (the default) means
    /// that of the database ([`Options::compression`](crate::Options::compression)). A build
    /// without the feature `zstd` refuses [`Compression::Zstd`], and every database that stores it.
    #[must_use]
    pub fn compression(mut self, compression: impl Into<Option<Compression>>) -> Self {
        self.compression = compression.into();
        self
    }

    /// Bits of filter for each record: 6 to 20, or 0 for no filters. A filter tells a get that a
    /// page group lacks its key, without a read of a block. More bits make fewer errors, and take
    /// more memory and space. `None` (the default) means the bits of the database
    /// ([`Options::filter_bits`](crate::Options::filter_bits)).
    #[must_use]
    pub fn filter_bits(mut self, bits: impl Into<Option<u32>>) -> Self {
        self.filter_bits = bits.into();
        self
    }

    /// The size to which the keyspace's data may grow on disk under overwriting, as a multiple of
    /// the data: 1.1 to 100, or [`SpaceAmplification::Unbounded`]. `None` (the default) means the
    /// bound of the database
    /// ([`Options::space_amplification`](crate::Options::space_amplification)).
    #[must_use]
    pub fn space_amplification(mut self, bound: impl Into<Option<SpaceAmplification>>) -> Self {
        self.space_amplification = bound.into();
        self
    }

    /// Values of at least this many bytes, 512 to 65,536, are kept out of the tree (Wayfinder, §2).
    /// `None` (the default) keeps all values in the tree.
    ///
    /// Merges write a separated value once into a value page, and then move its handle of eight or
    /// nine bytes only. That saves most bytes written for values from 4 KiB on. Ranges and
    /// `multi_get` read separated values in parallel, and neighbours in one read. Keys-only ranges
    /// and `contains` read none. The option can change at any time: it applies to what checkpoints
    /// write from then on. `docs/VALUES.md` in the repository says which values to separate, with
    /// figures.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-separate-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let options = terrapin::KeyspaceOptions::new().separate_from(4096);
    /// let pictures = database.create_keyspace("pictures", options)?;
    /// pictures.put("tortoise", vec![7; 10_000])?;
    /// database.checkpoint()?;
    /// assert_eq!(pictures.get("tortoise")?.unwrap().len(), 10_000);
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn separate_from(mut self, bytes: impl Into<Option<u32>>) -> Self {
        self.separate_from = bytes.into();
        self
    }

    /// The merge operator that [`crate::Keyspace::merge`] uses, by its name: a built-in one
    /// (`add-i64`, `saturating-add-i64`, `checked-add-i64`, `max`, `min`, `append`, `bit-or`), or
    /// one that [`crate::Options::merge_operator`] registers. `None` (the default) means no
    /// operator. It is chosen when the keyspace is created, and can change only while the keyspace
    /// has no records.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-operator-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// let options = terrapin::KeyspaceOptions::new().merge_operator("add-i64");
    /// let hits = database.create_keyspace("hits", options)?;
    /// hits.merge("home", 1i64.to_le_bytes())?;
    /// hits.merge("home", 2i64.to_le_bytes())?;
    /// assert_eq!(hits.get("home")?.unwrap(), 3i64.to_le_bytes());
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn merge_operator<'a>(mut self, name: impl Into<Option<&'a str>>) -> Self {
        self.merge_operator = name.into().map(OperatorName::from);
        self
    }

    /// Sorted runs of [`StructureKind::Tiered`] in each node of the tree, 2 to 64. About half as
    /// many lie there on average. More runs save bytes written, and cost reads. `None` (the
    /// default) means 16, and 8 while the keyspace is read as often as written. Other structures
    /// ignore the option.
    ///
    /// ```
    /// let options = terrapin::KeyspaceOptions::new().runs(24);
    /// assert!(options.check().is_ok() && options.runs(1).check().is_err());
    /// ```
    #[must_use]
    pub fn runs(mut self, runs: impl Into<Option<u32>>) -> Self {
        self.runs = runs.into();
        self
    }

    /// How long values last that are put without a time of their own, in whole milliseconds: at
    /// least one, and a part of one counts as one. The time begins when an operation is added to
    /// the log, a batch or a transaction. `None` (the default) means for ever.
    ///
    /// It is for every call that gives a key a value: puts, conditional writes, and records that
    /// are ingested. [`Keyspace::put_with_ttl`](crate::Keyspace::put_with_ttl),
    /// [`Keyspace::touch`](crate::Keyspace::touch) and
    /// [`Keyspace::persist`](crate::Keyspace::persist) say otherwise for single keys. Operands of
    /// merges change no deadline, and a value that they make of nothing has none. A change of the
    /// option is for later writes only.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-ttl-option-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use std::time::Duration;
    /// use terrapin::{KeyspaceOptions, Lifetime};
    /// let hour = Duration::from_secs(3600);
    /// let sessions = database.create_keyspace("sessions", KeyspaceOptions::new().ttl(hour))?;
    /// sessions.put("Ann", "token")?;
    /// assert!(matches!(sessions.ttl("Ann")?, Lifetime::Left(left) if left <= hour));
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[doc(alias("expiry", "expiration", "default_ttl"))]
    #[must_use]
    pub fn ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        let whole = |ttl| Duration::from_millis(expiry::whole_ms(ttl));
        self.ttl = ttl.into().map(whole);
        self
    }

    /// The time of [`KeyspaceOptions::ttl`] in milliseconds; 0 for none.
    pub(crate) fn ttl_ms(&self) -> u64 {
        self.ttl.map_or(0, expiry::whole_ms)
    }

    /// Chooses the hash of a hashed keyspace, which its creation else draws. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn key_hash(mut self, hash: impl Into<Option<KeyHash>>) -> Self {
        self.key_hash = hash.into();
        self
    }

    /// The options of a new keyspace. If it is hashed and has no hash, `draw` gives the seed of
    /// one.
    pub(crate) fn with_hash(self, draw: impl FnOnce() -> KeyHash) -> Self {
        match (self.structure, self.key_hash) {
            (StructureKind::Hashed, None) => self.key_hash(draw()),
            (StructureKind::Hashed, Some(_)) => self,
            _ => self.key_hash(None),
        }
    }

    /// The form in which the keyspace stores its keys.
    pub(crate) fn key_form(&self) -> KeyForm {
        self.key_hash.map_or(KeyForm::AsGiven, KeyForm::Hashed)
    }

    /// Checks the options against their bounds and this build, without a database. Whether the
    /// memory budget holds χ shows only in a database.
    ///
    /// Errors: `InvalidArgument` with the bounds; `Unsupported` for a compression that this build
    /// lacks.
    ///
    /// ```
    /// let error = terrapin::KeyspaceOptions::new().filter_bits(3).check().unwrap_err();
    /// assert!(error.to_string().contains("6 to 20 bits"));
    /// ```
    pub fn check(&self) -> Result<()> {
        if self.checkpoint_distance == Some(CheckpointDistance::Fixed(0)) {
            return Err(Error::invalid("the checkpoint distance is at least 1"));
        }
        self.compression.unwrap_or_default().check()?;
        check_filter_bits(self.filter_bits.unwrap_or(0))?;
        self.merge_operator.map_or(Ok(()), OperatorName::check)?;
        check_separate_from(self.separate_from.unwrap_or(0))?;
        self.runs.map_or(Ok(()), check_runs)?;
        self.ttl.map_or(Ok(()), check_ttl)?;
        match self.space_amplification {
            Some(bound) if !bound.is_valid() => Err(Error::invalid(
                "space amplification goes from 1.1 to 100 times the data, or is unbounded (space_amplification)",
            )
            .with("per cent", bound.percent().unwrap_or(0))),
            _ => Ok(()),
        }
    }
}

/// Checks the bits of a filter.
pub(crate) fn check_filter_bits(bits: u32) -> Result<()> {
    match bits == 0 || FILTER_BITS.contains(&bits) {
        true => Ok(()),
        false => Err(Error::invalid(
            "filters take 6 to 20 bits for each record, or 0 for no filters (filter_bits)",
        )
        .with("filter bits", bits)),
    }
}

/// Checks the number of sorted runs.
pub(crate) fn check_runs(runs: u32) -> Result<()> {
    match RUNS.contains(&runs) {
        true => Ok(()),
        false => {
            let message = "tiered buffers have 2 to 64 sorted runs in a node (runs)";
            Err(Error::invalid(message).with("runs", runs))
        }
    }
}

/// Checks how long values last.
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    match !ttl.is_zero() && expiry::whole_ms(ttl) < DEADLINE_MS_MAX {
        true => Ok(()),
        false => {
            let message = "values of a keyspace last for a millisecond at least, and for 8,900 \
                           years at most (ttl)";
            Err(Error::invalid(message).with("ttl", format_args!("{ttl:?}")))
        }
    }
}

/// Checks the threshold of separation.
pub(crate) fn check_separate_from(bytes: u32) -> Result<()> {
    match bytes == 0 || SEPARATE_FROM.contains(&bytes) {
        true => Ok(()),
        false => Err(Error::invalid(
            "values are separated from a length of 512 to 65,536 bytes on, or never (separate_from)",
        )
        .with("bytes", bytes)),
    }
}

impl Settings {
    /// Checks the options of a keyspace, also against a memory budget.
    pub fn check_keyspace(&self, options: &KeyspaceOptions, memory: u64) -> Result<()> {
        if let Some(distance) = options.checkpoint_distance {
            self.check_distance(distance, memory)?;
        }
        options.check()
    }

    /// How a merge of a keyspace writes. `space_is_short`: whether it writes from the reserve.
    pub fn merge_of(&self, options: &KeyspaceOptions, space_is_short: bool) -> MergeOptions {
        let mut merge = MergeOptions {
            space_is_short,
            operator: self.operator_of(options),
            separate_from: options.separate_from.or(self.merge.separate_from),
            runs: options.runs,
            ..self.merge.clone()
        };
        if mutant::active("merge-ignores-keyspace-options") {
            return merge;
        }
        if let Some(compression) = options.compression {
            merge.compression = compression;
        }
        if let Some(bits) = options.filter_bits {
            merge.filter_bits = bits;
        }
        if let Some(bound) = options.space_amplification {
            merge.space_amplification_percent = bound.percent();
        }
        merge
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, Options};

    #[test]
    fn a_keyspace_uses_its_own_options_and_else_the_databases() {
        let database = Options::new()
            .compression(Compression::Lz4)
            .filter_bits(10)
            .space_amplification(1.5);
        let settings = database.settle().unwrap();
        let plain = settings.merge_of(&KeyspaceOptions::new(), false);
        assert_eq!(plain.compression, Compression::Lz4);
        assert_eq!((plain.filter_bits, plain.space_is_short), (10, false));
        assert_eq!(plain.space_amplification_percent, Some(150));
        let own = KeyspaceOptions::new()
            .compression(Compression::None)
            .filter_bits(0)
            .space_amplification(SpaceAmplification::Unbounded);
        let own = settings.merge_of(&own, true);
        assert_eq!(own.compression, Compression::None);
        assert_eq!((own.filter_bits, own.space_is_short), (0, true));
        assert_eq!(own.space_amplification_percent, None);
    }

    #[test]
    fn options_out_of_bounds_are_refused_with_the_bounds() {
        let settings = Options::new().settle().unwrap();
        let check = |options: KeyspaceOptions| settings.check_keyspace(&options, 64 << 20);
        let of_factor =
            |factor| KeyspaceOptions::new().space_amplification(SpaceAmplification::from(factor));
        for bits in [0, 6, 20] {
            check(KeyspaceOptions::new().filter_bits(bits)).unwrap();
        }
        for factor in [1.1, 100.0] {
            check(of_factor(factor)).unwrap();
        }
        for (options, named) in [
            (KeyspaceOptions::new().filter_bits(5), "6 to 20"),
            (KeyspaceOptions::new().filter_bits(21), "6 to 20"),
            (of_factor(1.0), "1.1 to 100"),
            (of_factor(101.0), "1.1 to 100"),
            (of_factor(f64::NAN), "1.1 to 100"),
            (of_factor(f64::INFINITY), "1.1 to 100"),
            (
                KeyspaceOptions::new().checkpoint_distance(CheckpointDistance::Fixed(0)),
                "at least 1",
            ),
        ] {
            let error = check(options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{options:?}");
            assert!(error.to_string().contains(named), "{error}");
        }
        let zstd = check(KeyspaceOptions::new().compression(Compression::Zstd));
        assert_eq!(zstd.is_ok(), cfg!(feature = "zstd"));
    }
}
