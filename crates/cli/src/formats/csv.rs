//! csv by RFC 4180, strictly: two columns, CRLF (LF is read, too), quotes doubled within quotes. Fields are bytes of any kind.

use terrapin_base::Result;

use super::{Sink, Source};

const QUOTED: &str = "a quote is not doubled, or not at a field's end";

/// What ended a field.
#[derive(PartialEq)]
enum End {
    Comma,
    Record,
    Input,
}

fn field(source: &mut Source<'_>, out: &mut Vec<u8>) -> Result<End> {
    out.clear();
    if source.peek()? == Some(b'"') {
        quoted(source, out)?;
    } else {
        source.until(out, |byte| b",\"\r\n".contains(&byte))?;
    }
    match source.next()? {
        Some(b',') => Ok(End::Comma),
        Some(b'\n') => Ok(End::Record),
        Some(b'\r') if source.peek()? == Some(b'\n') => {
            source.next()?;
            Ok(End::Record)
        }
        None => Ok(End::Input),
        Some(b'\r') => Err(source.malformed("a carriage return stands outside quotes")),
        Some(_) => Err(source.malformed(QUOTED)),
    }
}

fn quoted(source: &mut Source<'_>, out: &mut Vec<u8>) -> Result<()> {
    let line = source.line();
    source.next()?;
    loop {
        source.until(out, |byte| byte == b'"')?;
        if source.next()?.is_none() {
            return Err(super::malformed(line, "a quoted field does not end"));
        }
        if source.peek()? != Some(b'"') {
            return Ok(());
        }
        source.next()?;
        out.push(b'"');
    }
}

pub(super) fn read(source: &mut Source<'_>, header: bool, sink: Sink<'_>) -> Result<()> {
    let (mut first, mut second) = (Vec::new(), Vec::new());
    let (mut at_header, mut swapped) = (header, false);
    while source.peek()?.is_some() {
        let line = source.line();
        let blank = matches!(source.peek()?, Some(b'\r' | b'\n'));
        let end = field(source, &mut first)?;
        if blank && end != End::Comma {
            continue;
        }
        if end != End::Comma {
            return Err(super::malformed(
                line,
                "there is one column where key and value should be",
            ));
        }
        if field(source, &mut second)? == End::Comma {
            return Err(super::malformed(
                line,
                "there are more columns than key and value",
            ));
        }
        if at_header {
            at_header = false;
            swapped = match (&first[..], &second[..]) {
                (b"key", b"value") => false,
                (b"value", b"key") => true,
                _ => {
                    return Err(super::malformed(
                        line,
                        "the header does not name the columns key and value",
                    ));
                }
            };
        } else if swapped {
            sink(line, &second, &first)?;
        } else {
            sink(line, &first, &second)?;
        }
    }
    Ok(())
}

pub(super) fn write_header(out: &mut Vec<u8>) {
    out.extend_from_slice(b"key,value\r\n");
}

#[allow(clippy::unnecessary_wraps)] // one signature for all formats
pub(super) fn write(key: &[u8], value: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    write_field(key, out);
    out.push(b',');
    write_field(value, out);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

fn write_field(field: &[u8], out: &mut Vec<u8>) {
    if !field.iter().any(|byte| b",\"\r\n".contains(byte)) {
        out.extend_from_slice(field);
        return;
    }
    out.push(b'"');
    for &byte in field {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_text(text: &[u8], header: bool) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut records = Vec::new();
        read(
            &mut Source::new(&mut &*text),
            header,
            &mut |_, key, value| {
                records.push((key.to_vec(), value.to_vec()));
                Ok(())
            },
        )?;
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
                write(key, value, &mut ours).unwrap();
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
        assert!(read_text(b"k,v\n", true).is_err());
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
}
