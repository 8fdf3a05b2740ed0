//! Ranges whose large values are read in pieces: [`Streamed`].

use std::time::SystemTime;

use terrapin_base::Result;
use terrapin_structure::Direction;

use crate::api::large::ValueReader;
use crate::api::unordered::given;
use crate::read::iter::{Left, Range};
use crate::types::key_form::KeyForm;

impl Range {
    /// The records, of which large values come as readers. So memory holds 1 MiB of a value, where
    /// the range itself fails at one that is longer than a quarter of the memory.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let name = format!("terrapin-doc-streamed-{}", std::process::id());
    /// # let directory = std::env::temp_dir().join(name);
    /// # let database = terrapin::Database::open(&directory)?;
    /// use terrapin::StreamedValue;
    /// let films = database.keyspace("films")?;
    /// films.put("The General", vec![7; 2 << 20])?;
    /// let mut records = films.iter().streamed();
    /// while let Some((_, value, _)) = records.next()? {
    ///     match value {
    ///         StreamedValue::Bytes(bytes) => assert!(bytes.len() <= 256 << 10),
    ///         StreamedValue::Reader(reader) => assert_eq!(reader.len(), 2 << 20),
    ///     }
    /// }
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    pub fn streamed(self) -> Streamed {
        Streamed::new(self, KeyForm::AsGiven)
    }
}

/// A value of [`Streamed`].
#[derive(Debug)]
pub enum StreamedValue<'a> {
    /// The value.
    Bytes(&'a [u8]),
    /// A reader of a large value ([`crate::Keyspace::writer`]). It outlives the range.
    Reader(ValueReader),
}

/// A key, its value, and the deadline of the value if it has one.
pub type StreamedRecord<'a> = (&'a [u8], StreamedValue<'a>, Option<SystemTime>);

/// The records of a [`Range`] or of [`Unordered`](crate::Unordered), whose large values are read in
/// pieces. [`Range::streamed`] makes it.
#[derive(Debug)]
pub struct Streamed {
    range: Range,
    form: KeyForm,
}

impl Streamed {
    pub(super) fn new(range: Range, form: KeyForm) -> Self {
        Streamed {
            range: range.with_large_left(),
            form,
        }
    }

    /// The next record from the front, borrowed until the next call. Errors: those of a [`Range`];
    /// those of opening a large value.
    #[expect(clippy::should_implement_trait, reason = "it lends its records")]
    pub fn next(&mut self) -> Result<Option<StreamedRecord<'_>>> {
        self.step(Direction::Forward)
    }

    /// The next record from the back: see [`Streamed::next`].
    pub fn next_back(&mut self) -> Result<Option<StreamedRecord<'_>>> {
        self.step(Direction::Backward)
    }

    fn step(&mut self, direction: Direction) -> Result<Option<StreamedRecord<'_>>> {
        let Some((key, value, deadline)) = self.range.next_left(direction)? else {
            return Ok(None);
        };
        let value = match value {
            Left::Value(bytes) => StreamedValue::Bytes(bytes),
            Left::Large(reader, limit) => {
                StreamedValue::Reader(ValueReader::of_page(reader, limit))
            }
        };
        Ok(Some((given(self.form, key)?, value, deadline)))
    }
}
