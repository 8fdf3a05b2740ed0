//! The text formats of import and export, byte-exact both ways.
//!
//! | format | a record |
//! | --- | --- |
//! | tsv | a line: the key, a tab, the rest is the value; nothing is escaped |
//! | csv | a line of two columns, key and value (RFC 4180), or three with the deadline |
//! | json | a member of one object |
//! | jsonl | a line: `{"key":…,"value":…}`, with a deadline `"expires_ms":…` too |
//!
//! A byte order mark at the beginning of an input is skipped. A text whose first record begins with
//! one gets another, so that it comes back.
//!
//! Readers hold one record at a time, and at most 1 MiB of it, whatever the input. A longer value
//! goes to a temporary file, if the caller takes such ([`text`]). Errors name the line, the byte
//! and the last good key. With hexadecimal digits (`--hex`) every format carries every record.

mod csv;
mod json;
mod jsonl;
mod source;
mod text;
mod tsv;

use std::io::{Read, Seek, Write};
use std::path::PathBuf;

use clap::ValueEnum;
use terrapin_base::expiry::DEADLINE_MS_MAX;
use terrapin_base::{Error, ErrorKind, Result, VALUE_BYTES_MAX};

use crate::bytes;
use crate::input::Input;
pub use csv::{Column, Columns};
use source::{BYTE_ORDER_MARK, Source, malformed};
use text::Utf8;
pub use text::{Long, SPOOLED_FROM_BYTES};

/// Bytes of a long value that are read at once.
const PIECE_BYTES: usize = 64 << 10;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Key, tab, value, newline; nothing is escaped
    Tsv,
    /// RFC 4180: key and value columns
    Csv,
    /// One record per line: {"key":…,"value":…}
    Jsonl,
    /// One object of key → value
    Json,
}

impl Format {
    /// The format of a file's name.
    #[must_use]
    pub fn of_name(path: &std::path::Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "tsv" => Some(Format::Tsv),
            "csv" => Some(Format::Csv),
            "jsonl" | "ndjson" => Some(Format::Jsonl),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// How a format is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    /// The format.
    pub format: Format,
    /// Keys and values are hexadecimal digits.
    pub hex: bool,
    /// csv begins with the columns' names.
    pub header: bool,
    /// json and jsonl write values that are the JSON text of anything but a string as JSON.
    pub typed: bool,
    /// Keys are written without their values.
    pub keys_only: bool,
    /// csv has a third column: the deadline of the value, in milliseconds since 1970, or nothing.
    pub deadlines: bool,
    /// Values with a deadline are written as if they had none.
    pub drop_deadlines: bool,
    /// csv is read from these columns.
    pub columns: Option<Columns>,
    /// Bytes of the longest value in memory.
    pub value_bytes_max: usize,
    /// The directory of a temporary file for longer values, up to 1 GiB. Without it, they are
    /// refused.
    pub spool: Option<PathBuf>,
}

impl Dialect {
    /// Plain bytes in that format.
    #[must_use]
    pub fn plain(format: Format) -> Self {
        Dialect {
            format,
            hex: false,
            header: false,
            typed: false,
            keys_only: false,
            deadlines: false,
            drop_deadlines: false,
            columns: None,
            value_bytes_max: VALUE_BYTES_MAX,
            spool: None,
        }
    }

    /// Refuses options that the format does not have: they would silently do nothing.
    pub fn check(&self) -> Result<()> {
        if self.header && self.format != Format::Csv {
            return Err(Error::invalid("--header goes with the format csv only"));
        }
        if let Some(columns) = &self.columns {
            if self.format != Format::Csv {
                return Err(Error::invalid(
                    "--csv-key and --csv-value go with the format csv only",
                ));
            }
            if self.hex && columns.value.is_none() {
                return Err(Error::invalid(
                    "--hex wants a --csv-value: without it a value is JSON, not hexadecimal digits",
                ));
            }
        }
        if self.deadlines && !matches!(self.format, Format::Csv | Format::Jsonl) {
            return Err(Error::invalid(
                "--deadlines goes with the formats csv and jsonl only",
            ));
        }
        if self.deadlines && (self.keys_only || self.columns.is_some()) {
            return Err(Error::invalid(
                "--deadlines does not go with --keys-only or --csv-key",
            ));
        }
        if self.typed && self.keys_only {
            return Err(Error::invalid(
                "--typed is about values, and --keys-only writes none",
            ));
        }
        if self.typed && (self.hex || !matches!(self.format, Format::Json | Format::Jsonl)) {
            return Err(Error::invalid(
                "--typed goes with the formats json and jsonl only, and not with --hex",
            ));
        }
        Ok(())
    }
}

/// A record that was read.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The line on which it is.
    pub line: u64,
    /// Its key.
    pub key: &'a [u8],
    /// Its value, unless it is long.
    pub value: &'a [u8],
    /// Its long value.
    pub long: Option<&'a Long>,
    /// The deadline of the value, if it has one, in milliseconds since 1970.
    pub expires_ms: Option<u64>,
}

impl<'a> Record<'a> {
    /// A record whose value has no deadline.
    fn lasting(line: u64, key: &'a [u8], (value, long): (&'a [u8], Option<&'a Long>)) -> Self {
        Record {
            line,
            key,
            value,
            long,
            expires_ms: None,
        }
    }
}

/// A deadline, from the text of a column or member: digits, or nothing.
fn deadline(line: u64, text: &[u8]) -> Result<Option<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = std::str::from_utf8(text).ok().filter(|text| {
        // `parse` takes a sign, too.
        text.bytes().all(|byte| byte.is_ascii_digit())
    });
    let deadline_ms = digits.and_then(|text| text.parse().ok());
    let in_time = deadline_ms.filter(|&ms: &u64| ms <= DEADLINE_MS_MAX);
    in_time.map(Some).ok_or_else(|| {
        let what = format!(
            "expires_ms is no whole number of milliseconds since 1970, at most {DEADLINE_MS_MAX}"
        );
        malformed(line, &what)
    })
}

/// Takes records.
pub type Sink<'a> = &'a mut dyn FnMut(Record<'_>) -> Result<()>;

/// Reads all records of an input in order. Stops at the first error, also one of the sink.
/// Malformed input is `InvalidArgument`.
pub fn read(dialect: &Dialect, input: &mut dyn Input, sink: Sink<'_>) -> Result<()> {
    let source = &mut Source::new(input);
    source.spool.directory.clone_from(&dialect.spool);
    source.spool.value_bytes_max = dialect.value_bytes_max;
    source.spool.hex = dialect.hex;
    let mut last_key = None::<Vec<u8>>;
    let read = read_source(dialect, source, &mut |record| {
        sink(record)?;
        let last_key = last_key.get_or_insert_default();
        last_key.clear();
        last_key.extend_from_slice(record.key);
        Ok(())
    });
    read.map_err(|error| match is_malformed(&error) {
        true => {
            let error = error.with("byte", source.byte());
            match last_key {
                Some(key) => error.with("last good key", bytes::show(&key)),
                None => error,
            }
        }
        false => error,
    })
}

/// Whether an error comes from the input's records, not from the sink.
#[must_use]
pub fn is_malformed(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::InvalidArgument | ErrorKind::TooLarge
    )
}

fn read_source(dialect: &Dialect, source: &mut Source<'_>, sink: Sink<'_>) -> Result<()> {
    let (mut key_bytes, mut value_bytes) = (Vec::new(), Vec::new());
    let mut decoding = |record: Record<'_>| {
        key_bytes.clear();
        value_bytes.clear();
        let is_key = bytes::decode_hex(record.key, &mut key_bytes);
        let is_sound = record.long.is_none_or(Long::is_sound);
        if !is_key || !is_sound || !bytes::decode_hex(record.value, &mut value_bytes) {
            return Err(malformed(
                record.line,
                "with --hex, keys and values are pairs of hexadecimal digits",
            ));
        }
        sink(Record {
            key: &key_bytes,
            value: &value_bytes,
            ..record
        })
    };
    source.skip_byte_order_mark()?;
    match (dialect.format, dialect.hex) {
        (Format::Tsv, false) => tsv::read(source, sink),
        (Format::Tsv, true) => tsv::read(source, &mut decoding),
        (Format::Csv, false) => csv::read(source, dialect, sink),
        (Format::Csv, true) => csv::read(source, dialect, &mut decoding),
        (Format::Json, false) => json::read(source, json::Values::Any, sink),
        (Format::Json, true) => json::read(source, json::Values::Strings, &mut decoding),
        (Format::Jsonl, false) => jsonl::read(source, json::Values::Any, sink),
        (Format::Jsonl, true) => jsonl::read(source, json::Values::Strings, &mut decoding),
    }
}

/// Writes records one after the other.
pub struct Writer<W: Write> {
    dialect: Dialect,
    out: W,
    records: u64,
    line: Vec<u8>,
    key_hex: Vec<u8>,
    value_hex: Vec<u8>,
}

impl<W: Write> Writer<W> {
    /// A writer that has not written yet.
    pub fn new(dialect: Dialect, out: W) -> Self {
        Writer {
            dialect,
            out,
            records: 0,
            line: Vec::new(),
            key_hex: Vec::new(),
            value_hex: Vec::new(),
        }
    }

    /// Whether values that are JSON are written as such.
    #[must_use]
    pub fn is_typed(&self) -> bool {
        self.dialect.typed
    }

    /// The number of records written.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Writes one record. `expires_ms` is the deadline of the value, in milliseconds since 1970.
    /// `Unsupported` if the format cannot carry it: the message names one that can.
    pub fn record(&mut self, key: &[u8], value: &[u8], expires_ms: Option<u64>) -> Result<()> {
        self.lay_out(key, value, expires_ms)?;
        self.put_line()
    }

    /// Makes the text of a record, and what stands in front of the first one.
    fn lay_out(&mut self, key: &[u8], value: &[u8], expires_ms: Option<u64>) -> Result<()> {
        let drops = self.dialect.drop_deadlines || self.dialect.keys_only;
        let expires_ms = expires_ms.filter(|_| !drops);
        let (mut shown_key, mut shown_value) = (key, (!self.dialect.keys_only).then_some(value));
        if self.dialect.hex {
            self.key_hex.clear();
            self.value_hex.clear();
            bytes::encode_hex(key, &mut self.key_hex);
            shown_key = &self.key_hex;
            if let Some(value) = shown_value {
                bytes::encode_hex(value, &mut self.value_hex);
                shown_value = Some(&self.value_hex);
            }
        }
        self.line.clear();
        if self.records == 0 {
            begin(&self.dialect, &mut self.line);
        }
        let typed = self.dialect.typed;
        let carried = match self.dialect.format {
            Format::Csv if self.dialect.deadlines => {
                csv::write_expiring(
                    shown_key,
                    shown_value.unwrap_or_default(),
                    expires_ms,
                    &mut self.line,
                );
                Ok(())
            }
            Format::Tsv | Format::Csv | Format::Json if expires_ms.is_some() => Err(
                "the value has a deadline, which csv carries with --deadlines, and jsonl always; \
                 --drop-deadlines writes the value without it",
            ),
            Format::Tsv => tsv::write(shown_key, shown_value, &mut self.line),
            Format::Csv => csv::write(shown_key, shown_value, &mut self.line),
            Format::Json => {
                let first = self.records == 0;
                json::write(first, shown_key, shown_value, typed, &mut self.line)
            }
            Format::Jsonl => {
                let value = (shown_value, expires_ms);
                jsonl::write(shown_key, value, typed, &mut self.line)
            }
        };
        carried.map_err(|why| refused(key, why))
    }

    /// Writes the text of a record, or its beginning.
    fn put_line(&mut self) -> Result<()> {
        if self.records == 0 && self.line.starts_with(BYTE_ORDER_MARK) {
            // A reader takes the first one for a byte order mark.
            self.out.write_all(BYTE_ORDER_MARK).map_err(output_failed)?;
        }
        self.records += 1;
        self.out.write_all(&self.line).map_err(output_failed)
    }

    /// Writes a record whose value is read in pieces, like [`Writer::record`]. A format that cannot
    /// carry the value says so before anything of the record is written, for which it reads the
    /// value once more. A value is a string here, also with [`Dialect::typed`].
    pub fn record_streamed<V: Read + Seek>(
        &mut self,
        key: &[u8],
        value: &mut V,
        expires_ms: Option<u64>,
    ) -> Result<()> {
        if !self.dialect.hex {
            let carried = carries(self.dialect.format, value)?;
            carried.map_err(|why| refused(key, why))?;
        }
        self.lay_out(key, &[], expires_ms)?;
        let mut behind = self.behind(expires_ms);
        self.line.truncate(self.line.len() - behind.len());
        let hex = self.dialect.hex;
        if self.dialect.format == Format::Csv && !hex {
            self.line.push(b'"');
            behind.insert(0, b'"');
        }
        self.put_line()?;
        let (format, line, out) = (self.dialect.format, &mut self.line, &mut self.out);
        in_pieces(value, &mut |piece| {
            line.clear();
            match format {
                _ if hex => bytes::encode_hex(piece, line),
                Format::Tsv => line.extend_from_slice(piece),
                Format::Csv => csv::write_quoted(piece, line),
                Format::Json | Format::Jsonl => json::write_escaped(piece, line),
            }
            out.write_all(line).map_err(output_failed)
        })?;
        self.out.write_all(&behind).map_err(output_failed)
    }

    /// What stands behind a value that is not JSON of its own.
    fn behind(&self, expires_ms: Option<u64>) -> Vec<u8> {
        let expires_ms = expires_ms.filter(|_| !self.dialect.drop_deadlines);
        let text = match (self.dialect.format, expires_ms) {
            (Format::Tsv, _) => "\n".to_owned(),
            (Format::Csv, Some(ms)) => format!(",{ms}\r\n"),
            (Format::Csv, None) if self.dialect.deadlines => ",\r\n".to_owned(),
            (Format::Csv, None) => "\r\n".to_owned(),
            (Format::Json, _) => "\"".to_owned(),
            (Format::Jsonl, Some(ms)) => format!("\",\"expires_ms\":{ms}}}\n"),
            (Format::Jsonl, None) => "\"}\n".to_owned(),
        };
        text.into_bytes()
    }

    /// Writes the end of the format and flushes. Returns the number of records.
    pub fn finish(mut self) -> Result<u64> {
        self.line.clear();
        if self.records == 0 {
            begin(&self.dialect, &mut self.line);
        }
        if self.dialect.format == Format::Json {
            json::end(self.records == 0, self.dialect.keys_only, &mut self.line);
        }
        self.out
            .write_all(&self.line)
            .and_then(|()| self.out.flush())
            .map_err(output_failed)?;
        Ok(self.records)
    }
}

fn begin(dialect: &Dialect, out: &mut Vec<u8>) {
    if dialect.format == Format::Csv && dialect.header {
        csv::write_header(dialect, out);
    }
}

/// The error of a record that the format cannot carry.
fn refused(key: &[u8], why: &'static str) -> Error {
    Error::new(ErrorKind::Unsupported, why).with("key", bytes::show(key))
}

/// Whether a format carries a value, if not as digits: why not.
fn carries<V: Read + Seek>(format: Format, value: &mut V) -> Result<Result<(), &'static str>> {
    let (mut utf8, mut lines) = (Utf8::default(), false);
    match format {
        Format::Csv => {}
        Format::Tsv => in_pieces(value, &mut |piece| {
            lines |= piece.contains(&b'\n');
            Ok(())
        })?,
        Format::Json | Format::Jsonl => in_pieces(value, &mut |piece| {
            utf8.add(piece);
            Ok(())
        })?,
    }
    Ok(match (lines, utf8.is_whole()) {
        (true, _) => Err(tsv::NO_LINES),
        (false, false) => Err(json::NO_BYTES),
        (false, true) => Ok(()),
    })
}

/// Reads a value from its beginning to its end.
fn in_pieces<V: Read + Seek>(
    value: &mut V,
    take: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let failed = |error: std::io::Error| match error.downcast::<Error>() {
        Ok(error) => error,
        Err(error) => Error::io("cannot read the value", error),
    };
    let mut piece = vec![0; PIECE_BYTES];
    value.rewind().map_err(failed)?;
    loop {
        match value.read(&mut piece).map_err(failed)? {
            0 => return Ok(()),
            count => take(&piece[..count])?,
        }
    }
}

fn output_failed(error: std::io::Error) -> Error {
    Error::io("cannot write the records", error)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use proptest::prelude::*;

    type Records = Vec<(Vec<u8>, Vec<u8>)>;

    fn written(dialect: &Dialect, records: &Records) -> Result<Vec<u8>> {
        let mut out = Vec::new();
        let mut writer = Writer::new(dialect.clone(), &mut out);
        records
            .iter()
            .try_for_each(|(k, v)| writer.record(k, v, None))?;
        writer.finish()?;
        Ok(out)
    }

    /// Reads through pieces of one to seven bytes, so every place is the end of a piece once.
    fn read_back(dialect: &Dialect, text: &[u8]) -> Result<Records> {
        struct Dribble<'a>(&'a [u8], usize);
        impl Read for Dribble<'_> {
            fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
                self.1 = self.1 % 7 + 1;
                let count = self.1.min(out.len()).min(self.0.len());
                let (head, tail) = self.0.split_at(count);
                out[..count].copy_from_slice(head);
                self.0 = tail;
                Ok(count)
            }
        }
        let mut records = Records::new();
        read(dialect, &mut Dribble(text, 0), &mut |record| {
            assert_eq!(record.expires_ms, None);
            records.push((record.key.to_vec(), record.value.to_vec()));
            Ok(())
        })?;
        Ok(records)
    }

    const FORMATS: [Format; 4] = [Format::Tsv, Format::Csv, Format::Jsonl, Format::Json];

    /// All sensible dialects.
    fn dialects() -> impl Iterator<Item = Dialect> {
        let of = |format: Format, bits: u8| Dialect {
            hex: bits & 1 != 0,
            header: bits & 2 != 0,
            typed: bits & 4 != 0,
            ..Dialect::plain(format)
        };
        let all = FORMATS
            .into_iter()
            .flat_map(move |format| (0..8).map(move |bits| of(format, bits)));
        all.filter(|dialect| dialect.check().is_ok())
    }

    /// Bytes with many characters that formats treat specially.
    fn nasty() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(
                prop::sample::select(&b"\t\n\r\",:{}[]\\ a\0\x7f"[..]),
                0..12
            ),
            any::<String>().prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..20),
            "\u{feff}{0,3}[a\",]{0,2}".prop_map(String::into_bytes),
        ]
    }

    proptest! {
        #[test]
        fn whatever_a_format_writes_it_reads_back(records in prop::collection::vec((nasty(), nasty()), 0..8)) {
            for dialect in dialects() {
                match written(&dialect, &records) {
                    Ok(text) => prop_assert_eq!(&read_back(&dialect, &text).unwrap(), &records, "{:?}", dialect),
                    Err(error) => {
                        let carries_all = dialect.hex || dialect.format == Format::Csv;
                        prop_assert!(!carries_all, "{:?} refused: {}", dialect, error);
                        prop_assert_eq!(error.kind(), ErrorKind::Unsupported);
                    }
                }
            }
        }

        #[test]
        fn hostile_text_never_panics(text in nasty()) {
            for format in FORMATS {
                for (hex, header) in [(false, false), (true, true)] {
                    let _ = read_back(&Dialect { hex, header, ..Dialect::plain(format) }, &text);
                }
            }
        }
    }

    /// In jsonl, line ends within values became spaces.
    #[test]
    fn typed_values_of_several_lines_come_back_to_the_byte() {
        let records: Records = ["[\n]", "{\r\n\"a\": 1}", "[1,\r2]", "[ ]"]
            .map(|value| (b"k".to_vec(), value.as_bytes().to_vec()))
            .to_vec();
        for dialect in dialects().filter(|dialect| dialect.typed) {
            let text = written(&dialect, &records).unwrap();
            assert_eq!(read_back(&dialect, &text).unwrap(), records, "{dialect:?}");
        }
    }

    #[test]
    fn a_record_that_the_format_cannot_carry_is_refused_with_a_better_format() {
        let refusal = |format, key: &[u8], value: &[u8]| {
            written(
                &Dialect::plain(format),
                &vec![(key.to_vec(), value.to_vec())],
            )
            .unwrap_err()
            .to_string()
        };
        assert!(refusal(Format::Tsv, b"a\tb", b"").contains("csv"));
        assert!(refusal(Format::Tsv, b"a\nb", b"").contains("csv"));
        assert!(refusal(Format::Tsv, b"a", b"x\n").contains("csv"));
        for format in [Format::Json, Format::Jsonl] {
            assert!(refusal(format, b"\xff", b"").contains("--hex"));
            assert!(refusal(format, b"", b"\xff").contains("--hex"));
        }
    }

    #[test]
    fn deadlines_come_back_where_the_format_carries_them() {
        let records = [
            ("a", "1", Some(1_800_000_000_000)),
            ("b", "2,\"", None),
            ("c", "3", Some(0)),
            ("d", "", Some(DEADLINE_MS_MAX)),
        ];
        for format in FORMATS {
            for bits in 0..8 {
                let dialect = Dialect {
                    deadlines: bits & 1 != 0,
                    header: bits & 2 != 0,
                    hex: bits & 4 != 0,
                    ..Dialect::plain(format)
                };
                if dialect.check().is_err() {
                    continue;
                }
                let mut text = Vec::new();
                let mut writer = Writer::new(dialect.clone(), &mut text);
                let written = records.iter().try_for_each(|&(key, value, expires_ms)| {
                    writer.record(key.as_bytes(), value.as_bytes(), expires_ms)
                });
                let carries = format == Format::Jsonl || dialect.deadlines;
                if !carries {
                    let error = written.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Unsupported);
                    assert!(error.to_string().contains("--drop-deadlines"), "{error}");
                    continue;
                }
                written.unwrap();
                writer.finish().unwrap();
                let mut found = Vec::new();
                read(&dialect, &mut &text[..], &mut |record| {
                    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                    found.push((text(record.key), text(record.value), record.expires_ms));
                    Ok(())
                })
                .unwrap();
                let expected = records.map(|(key, value, ms)| (key.into(), value.into(), ms));
                assert_eq!(found, expected, "{dialect:?}");
            }
            let dropping = Dialect {
                drop_deadlines: true,
                ..Dialect::plain(format)
            };
            let mut text = Vec::new();
            let mut writer = Writer::new(dropping.clone(), &mut text);
            writer.record(b"a", b"1", Some(7)).unwrap();
            writer.finish().unwrap();
            let expected = vec![(b"a".to_vec(), b"1".to_vec())];
            assert_eq!(read_back(&dropping, &text).unwrap(), expected);
        }
    }

    #[test]
    fn deadlines_that_are_none_are_malformed() {
        let csv = Dialect {
            deadlines: true,
            ..Dialect::plain(Format::Csv)
        };
        let jsonl = Dialect::plain(Format::Jsonl);
        for hostile in [
            "-1",
            "1.5",
            "soon",
            "281474976710656",
            "99999999999999999999",
            "+1",
        ] {
            let line = format!("k,v,{hostile}\n");
            let object = format!("{{\"key\":\"k\",\"value\":\"v\",\"expires_ms\":{hostile}}}\n");
            for (dialect, text) in [(&csv, line), (&jsonl, object)] {
                let error = read_back(dialect, text.as_bytes()).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
            }
        }
    }

    #[test]
    fn formats_follow_from_names() {
        let of = |name: &str| Format::of_name(std::path::Path::new(name));
        assert_eq!(of("a/b.JSON"), Some(Format::Json));
        assert_eq!(of("b.tar.tsv"), Some(Format::Tsv));
        assert_eq!(of("json"), None);
        assert_eq!(of("-"), None);
    }

    /// json reported "line 1" for every place in a file of one line.
    #[test]
    fn malformed_input_is_reported_with_its_byte_and_the_last_good_key() {
        for (format, text, byte, last) in [
            (Format::Json, r#"{"a":1,"b":2,"c" 3}"#, 18, Some("b")),
            (Format::Json, r#"{"a":1,"b":2"#, 13, Some("b")),
            (Format::Json, r#"{"a":tru}"#, 9, None),
            (
                Format::Jsonl,
                "{\"key\":\"a\",\"value\":1}\n{\"key\":1}\n",
                30,
                Some("a"),
            ),
            (Format::Tsv, "a\t1\nb\n", 6, Some("a")),
            (Format::Csv, "a,1\nb\rc,2\n", 7, Some("a")),
        ] {
            let error = read_back(&Dialect::plain(format), text.as_bytes()).unwrap_err();
            let context: std::collections::BTreeMap<_, _> =
                error.context().iter().cloned().collect();
            assert_eq!(context["byte"], byte.to_string(), "{error}");
            let last = last.map(|key| bytes::show(key.as_bytes()));
            assert_eq!(context.get("last good key"), last.as_ref(), "{error}");
        }
    }

    #[test]
    fn keys_alone_are_written_in_every_format() {
        let records = [("", "1"), ("a,\u{e9}", "2")]
            .map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec()))
            .to_vec();
        for (format, expected) in [
            (Format::Tsv, "\na,\u{e9}\n"),
            (Format::Csv, "\"\"\r\n\"a,\u{e9}\"\r\n"),
            (Format::Jsonl, "{\"key\":\"\"}\n{\"key\":\"a,\u{e9}\"}\n"),
            (Format::Json, "[\n  \"\",\n  \"a,\u{e9}\"\n]\n"),
        ] {
            let dialect = Dialect {
                keys_only: true,
                ..Dialect::plain(format)
            };
            let text = written(&dialect, &records).unwrap();
            assert_eq!(String::from_utf8(text).unwrap(), expected);
        }
    }
}
