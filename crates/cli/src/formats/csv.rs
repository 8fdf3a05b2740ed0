//! csv by RFC 4180, strictly: CRLF (LF is read, too), quotes doubled within quotes. Fields are
//! bytes of any kind. A record has two columns, key and value, or a third one with the deadline of
//! the value. Of a file with others, [`Columns`] says which are the key and the value.

use terrapin_base::Result;

use super::text::{Long, Part, Spool, give_back};
use super::{Dialect, Record, Sink, Source};
use crate::bytes;

const QUOTED: &str = "a quote is not doubled, or not at a field's end";

/// Most columns of a line: each comma of a line takes memory.
const COLUMNS_MAX: usize = 1 << 14;

/// A column of a csv file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column {
    /// By its number, from 1.
    Number(usize),
    /// By its name in the header.
    Name(String),
}

impl std::str::FromStr for Column {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.parse() {
            Ok(0) => Err("columns are numbered from 1"),
            Ok(number) => Ok(Column::Number(number)),
            Err(_) => Ok(Column::Name(text.to_owned())),
        }
    }
}

/// The columns that are read from a csv file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// The key.
    pub key: Column,
    /// The value. Without it, a JSON object of all columns but the key's, by their names in the
    /// header.
    pub value: Option<Column>,
}

impl Columns {
    /// Whether the columns can be found only with a header.
    #[must_use]
    pub fn need_header(&self) -> bool {
        let is_name = |column: &Column| matches!(column, Column::Name(_));
        is_name(&self.key) || self.value.as_ref().is_none_or(is_name)
    }
}

/// One line: its fields, back to back. Memory has nothing of long ones.
#[derive(Default)]
struct Row {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Long fields and their numbers.
    long: Vec<(usize, Long)>,
}

impl Row {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn field(&self, number: usize) -> &[u8] {
        let start = number.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[start..self.ends[number]]
    }

    fn long(&self, number: usize) -> Option<&Long> {
        let found = self.long.iter().find(|(own, _)| *own == number);
        found.map(|(_, long)| long)
    }

    /// Reads the next field.
    fn read_field(&mut self, source: &mut Source<'_>) -> Result<End> {
        let mut long = None;
        let start = self.bytes.len();
        let part = Part {
            bytes: &mut self.bytes,
            start,
            long: &mut long,
        };
        let end = field(source, part)?;
        if let Some(mut long) = long {
            long.end()?;
            self.long.push((self.ends.len(), long));
        }
        self.ends.push(self.bytes.len());
        Ok(end)
    }

    fn fields(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|number| self.field(number))
    }

    /// Reads the next line that is not empty. Returns the number of its first line; none at the
    /// end.
    fn read(&mut self, source: &mut Source<'_>) -> Result<Option<u64>> {
        while source.peek()?.is_some() {
            let line = source.line();
            let is_empty = matches!(source.peek()?, Some(b'\r' | b'\n'));
            self.bytes.clear();
            self.ends.clear();
            for (_, long) in self.long.drain(..) {
                give_back(long, &mut source.spool)?;
            }
            while self.read_field(source)? == End::Comma {
                if self.len() == COLUMNS_MAX {
                    return Err(super::malformed(line, "there are too many columns"));
                }
            }
            if !is_empty || self.len() > 1 {
                return Ok(Some(line));
            }
        }
        Ok(None)
    }
}

/// The end of a field.
#[derive(PartialEq)]
enum End {
    Comma,
    Record,
}

/// Appends a field's content.
fn field(source: &mut Source<'_>, mut out: Part<'_>) -> Result<End> {
    if source.peek()? == Some(b'"') {
        quoted(source, &mut out)?;
    } else {
        let add = &mut |run: &[u8], spool: &mut Spool| out.add(run, spool);
        source.until_with(add, |byte| b",\"\r\n".contains(&byte))?;
    }
    match source.next()? {
        Some(b',') => Ok(End::Comma),
        Some(b'\n') | None => Ok(End::Record),
        Some(b'\r') if source.peek()? == Some(b'\n') => {
            source.next()?;
            Ok(End::Record)
        }
        Some(b'\r') => Err(source.malformed("a carriage return stands outside quotes")),
        Some(_) => Err(source.malformed(QUOTED)),
    }
}

fn quoted(source: &mut Source<'_>, out: &mut Part<'_>) -> Result<()> {
    let line = source.line();
    source.next()?;
    loop {
        let add = &mut |run: &[u8], spool: &mut Spool| out.add(run, spool);
        source.until_with(add, |byte| byte == b'"')?;
        if source.next()?.is_none() {
            return Err(super::malformed(line, "a quoted field does not end"));
        }
        if source.peek()? != Some(b'"') {
            return Ok(());
        }
        source.next()?;
        out.add(b"\"", &mut source.spool)?;
    }
}

/// The positions of key and value in a line.
struct Places {
    key: usize,
    value: Value,
    /// The column with the deadline.
    expires: Option<usize>,
    /// The number of columns of every line.
    count: usize,
}

enum Value {
    Column(usize),
    /// A JSON object of these columns: the number of each, and the text before its value.
    Rest(Vec<(usize, Vec<u8>)>),
}

impl Places {
    fn of_two() -> Self {
        Places {
            key: 0,
            value: Value::Column(1),
            expires: None,
            count: 2,
        }
    }

    fn of_three() -> Self {
        Places {
            expires: Some(2),
            count: 3,
            ..Self::of_two()
        }
    }

    /// The columns of a header that has just the two, or these and the deadline.
    fn of_header(header: &Row, line: u64) -> Result<Self> {
        let at = |name: &[u8]| header.fields().position(|field| field == name);
        let expires = at(b"expires_ms");
        let count = 2 + usize::from(expires.is_some());
        match (at(b"key"), at(b"value")) {
            (Some(key), Some(value)) if header.len() == count => Ok(Places {
                key,
                value: Value::Column(value),
                expires,
                count,
            }),
            _ => {
                let what = "the header does not name the columns key and value, also expires_ms, \
                    and no others; --csv-key and --csv-value say which to read";
                Err(super::malformed(line, what))
            }
        }
    }

    /// The columns in the first line, which may be a header.
    fn of(columns: &Columns, first: &Row, line: u64) -> Result<Self> {
        let find = |column: &Column| find(column, first).map_err(|e| super::malformed(line, &e));
        let key = find(&columns.key)?;
        let value = match &columns.value {
            Some(column) => Value::Column(find(column)?),
            None => Value::Rest(rest(first, key).map_err(|e| super::malformed(line, &e))?),
        };
        Ok(Places {
            key,
            value,
            expires: None,
            count: first.len(),
        })
    }

    fn check(&self, row: &Row, line: u64, is_chosen: bool) -> Result<()> {
        let what = match row.len() {
            count if count == self.count => return Ok(()),
            count if is_chosen => format!(
                "it has {} where the first line has {}",
                bytes::counted(count as u64, "column"),
                self.count
            ),
            1 => "there is one column where key and value should be".to_owned(),
            2 => "there is no third column with the deadline, expires_ms".to_owned(),
            _ => {
                "there are more columns than key and value; --csv-key and --csv-value choose two, \
                and --deadlines reads a third one, expires_ms"
                    .to_owned()
            }
        };
        Err(super::malformed(line, &what))
    }

    /// Writes the object of the other columns.
    fn object(
        columns: &[(usize, Vec<u8>)],
        row: &Row,
        out: &mut Vec<u8>,
    ) -> Result<(), &'static str> {
        out.clear();
        for (number, before) in columns {
            out.extend_from_slice(before);
            super::json::write_string(row.field(*number), out)?;
        }
        if columns.is_empty() {
            out.push(b'{');
        }
        out.push(b'}');
        Ok(())
    }
}

fn find(column: &Column, first: &Row) -> Result<usize, String> {
    let name = match column {
        Column::Number(number) if *number <= first.len() => return Ok(number - 1),
        Column::Number(number) => {
            let count = bytes::counted(first.len() as u64, "column");
            return Err(format!("there is no column {number}, but {count}"));
        }
        Column::Name(name) => name,
    };
    let mut found = (0..first.len()).filter(|&at| first.field(at) == name.as_bytes());
    match (found.next(), found.next()) {
        (Some(at), None) => Ok(at),
        (Some(_), Some(_)) => Err(format!(
            "the header has the column {name} twice: give its number"
        )),
        (None, _) => {
            let names: Vec<String> = first.fields().take(20).map(bytes::show).collect();
            Err(format!(
                "the header has no column {name}, but {}",
                names.join(", ")
            ))
        }
    }
}

/// All columns but one, each with the beginning of its member.
fn rest(header: &Row, key: usize) -> Result<Vec<(usize, Vec<u8>)>, String> {
    let mut columns: Vec<(usize, Vec<u8>)> = Vec::new();
    for number in (0..header.len()).filter(|&number| number != key) {
        let mut name = Vec::new();
        super::json::write_string(header.field(number), &mut name)
            .map_err(|_| format!("the name of column {} is not UTF-8", number + 1))?;
        let before = if columns.is_empty() { b'{' } else { b',' };
        let before = [&[before][..], &name, b":"].concat();
        if columns.iter().any(|(_, other)| other[1..] == before[1..]) {
            let name = String::from_utf8_lossy(&name);
            return Err(format!(
                "the header has the column {name} twice: --csv-value chooses one"
            ));
        }
        columns.push((number, before));
    }
    Ok(columns)
}

pub(super) fn read(source: &mut Source<'_>, dialect: &Dialect, sink: Sink<'_>) -> Result<()> {
    let columns = dialect.columns.as_ref();
    let has_header = dialect.header || columns.is_some_and(Columns::need_header);
    if columns.is_some_and(|columns| columns.value.is_none()) {
        // A value is made of all columns.
        source.spool.directory = None;
    }
    let (mut row, mut object) = (Row::default(), Vec::new());
    let mut places = None;
    while let Some(line) = row.read(source)? {
        let places = match &places {
            Some(places) => places,
            None => {
                let found = match columns {
                    Some(columns) => Places::of(columns, &row, line)?,
                    None if has_header => Places::of_header(&row, line)?,
                    None if dialect.deadlines => Places::of_three(),
                    None => Places::of_two(),
                };
                let found = &*places.insert(found);
                if has_header {
                    continue;
                }
                found
            }
        };
        places.check(&row, line, columns.is_some())?;
        let key = row.field(places.key);
        if row.long(places.key).is_some() {
            return Err(super::malformed(
                line,
                "the key is far longer than the limit",
            ));
        }
        let expires = places.expires.map(|number| row.field(number));
        let expires_ms = super::deadline(line, expires.unwrap_or_default())?;
        let record = |value, long| Record {
            expires_ms,
            ..Record::lasting(line, key, (value, long))
        };
        match &places.value {
            Value::Column(number) => sink(record(row.field(*number), row.long(*number)))?,
            Value::Rest(columns) => {
                Places::object(columns, &row, &mut object).map_err(|_| {
                    super::malformed(line, "a column is not UTF-8, which JSON wants")
                })?;
                sink(record(&object, None))?;
            }
        }
    }
    Ok(())
}

pub(super) fn write_header(dialect: &Dialect, out: &mut Vec<u8>) {
    let names = match (dialect.keys_only, dialect.deadlines) {
        (true, _) => "key\r\n",
        (false, false) => "key,value\r\n",
        (false, true) => "key,value,expires_ms\r\n",
    };
    out.extend_from_slice(names.as_bytes());
}

/// Writes a record of three columns.
pub(super) fn write_expiring(key: &[u8], value: &[u8], expires_ms: Option<u64>, out: &mut Vec<u8>) {
    write_field(key, out);
    out.push(b',');
    write_field(value, out);
    out.push(b',');
    if let Some(expires_ms) = expires_ms {
        out.extend_from_slice(expires_ms.to_string().as_bytes());
    }
    out.extend_from_slice(b"\r\n");
}

#[allow(clippy::unnecessary_wraps)] // one signature for all formats
pub(super) fn write(
    key: &[u8],
    value: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    match value {
        Some(value) => {
            write_field(key, out);
            out.push(b',');
            write_field(value, out);
        }
        // An empty key and value would make an empty line, which is no record.
        None if key.is_empty() => out.extend_from_slice(b"\"\""),
        None => write_field(key, out),
    }
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn write_field(field: &[u8], out: &mut Vec<u8>) {
    if !field.iter().any(|byte| b",\"\r\n".contains(byte)) {
        out.extend_from_slice(field);
        return;
    }
    out.push(b'"');
    write_quoted(field, out);
    out.push(b'"');
}

/// Writes a part of a field between quotes.
pub(super) fn write_quoted(part: &[u8], out: &mut Vec<u8>) {
    for &byte in part {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;
    use proptest::prelude::*;

    fn read_text(text: &[u8], header: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut records = Vec::new();
        let dialect = Dialect {
            header,
            ..Dialect::plain(Format::Csv)
        };
        read(&mut Source::new(&mut &*text), &dialect, &mut |record| {
            records.push((record.key.to_vec(), record.value.to_vec()));
            Ok(())
        })?;
        Ok(records)
    }

    proptest! {
        #[test]
        fn agrees_with_another_implementation(
            records in prop::collection::vec((any::<Vec<u8>>(), "[a\",\r\n ]{0,6}".prop_map(String::into_bytes)), 0..5)
        ) {
            let mut theirs = ::csv::WriterBuilder::new().terminator(::csv::Terminator::CRLF).from_writer(Vec::new());
            let mut ours = Vec::new();
            for (key, value) in &records {
                theirs.write_record([key, value]).unwrap();
                write(key, Some(value), &mut ours).unwrap();
            }
            prop_assert_eq!(&read_text(&theirs.into_inner().unwrap(), false).unwrap(), &records);
            let mut back = ::csv::ReaderBuilder::new().has_headers(false).from_reader(&ours[..]);
            for (record, (key, value)) in back.byte_records().zip(&records) {
                let record = record.unwrap();
                prop_assert_eq!((&record[0], &record[1]), (&key[..], &value[..]));
            }
        }
    }

    #[test]
    fn a_header_names_the_columns_in_either_order() {
        let record = vec![(b"k".to_vec(), b"v".to_vec())];
        assert_eq!(read_text(b"key,value\nk,v\n", true).unwrap(), record);
        assert_eq!(read_text(b"value,key\r\nv,k", true).unwrap(), record);
        assert_eq!(
            read_text(b"value,expires_ms,key\r\nv,,k", true).unwrap(),
            record
        );
        for header in [
            "k,v",
            "key,key",
            "key,value,value",
            "key,expires_ms",
            "key,value,x",
        ] {
            assert!(read_text(header.as_bytes(), true).is_err());
        }
        assert_eq!(read_text(b"\r\nk,v\n\n\n", false).unwrap(), record);
    }

    #[test]
    fn malformed_records_are_named_by_the_line_they_begin_on() {
        for (text, line) in [
            ("a,b\nc\n", 2),
            ("a,b,c\n", 1),
            ("\"x\ny\",1\n\"open\nfor ever", 3),
            ("a\"b,c\n", 1),
            ("\"a\"b,c\n", 1),
            ("a\rb,c\n", 1),
        ] {
            let error = read_text(text.as_bytes(), false).unwrap_err().to_string();
            assert!(
                error.contains(&format!("malformed line {line}:")),
                "{text:?}: {error}"
            );
        }
    }

    fn read_columns(text: &str, key: &str, value: Option<&str>) -> Result<Vec<(String, String)>> {
        let columns = Some(Columns {
            key: key.parse().unwrap(),
            value: value.map(|value| value.parse().unwrap()),
        });
        let dialect = Dialect {
            columns,
            ..Dialect::plain(Format::Csv)
        };
        let mut records = Vec::new();
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        read(
            &mut Source::new(&mut text.as_bytes()),
            &dialect,
            &mut |record| {
                records.push((text_of(record.key), text_of(record.value)));
                Ok(())
            },
        )?;
        Ok(records)
    }

    #[test]
    fn columns_are_chosen_by_name_or_number() {
        let text = "id,name,note\r\n7,\"Ann, A.\",\"said \"\"hi\"\"\"\n\n8,Bob,\n";
        let of = |key: &str, value: Option<&str>| read_columns(text, key, value).unwrap();
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            of("id", Some("name")),
            [pair("7", "Ann, A."), pair("8", "Bob")]
        );
        assert_eq!(
            of("3", Some("id")),
            [pair("said \"hi\"", "7"), pair("", "8")]
        );
        // Numbers alone need no header.
        assert_eq!(of("1", Some("1"))[0], pair("id", "id"));
        let rest = r#"{"name":"Ann, A.","note":"said \"hi\""}"#;
        assert_eq!(of("id", None)[0], pair("7", rest));
        assert_eq!(of("1", None).len(), 2);
        assert_eq!(
            read_columns("a\n1\n", "a", None).unwrap(),
            [pair("1", "{}")]
        );
    }

    #[test]
    fn a_missing_column_is_reported_with_the_existing_ones() {
        for (text, key, value, said) in [
            (
                "a,b\n1,2\n",
                "c",
                Some("a"),
                "has no column c, but \"a\", \"b\"",
            ),
            (
                "a,b\n1,2\n",
                "3",
                Some("1"),
                "there is no column 3, but 2 columns",
            ),
            ("a,b,a\n", "a", Some("b"), "twice: give its number"),
            ("a,b,b\n", "a", None, "twice"),
            (
                "a,b\n1,2\n\n3\n",
                "a",
                Some("b"),
                "line 4: it has 1 column where",
            ),
        ] {
            let error = read_columns(text, key, value).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        assert!("0".parse::<Column>().is_err());
        let commas = vec![b','; 10 << 20];
        assert!(
            read_text(&commas, false)
                .unwrap_err()
                .to_string()
                .contains("too many columns")
        );
    }
}
