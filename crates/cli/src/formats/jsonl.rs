//! jsonl: one record per line, `{"key":…,"value":…}`. Where the value has a deadline, a third
//! member, `"expires_ms":…`, has it in milliseconds since 1970. The members come in any order,
//! and there are no others.

use terrapin_base::{ErrorKind, Result};

use super::json::{Values, colon, is_text_of_no_string, string, value, write_string};
use super::text::Text;
use super::{Record, Sink, Source};
use crate::bytes;

pub(super) fn read(source: &mut Source<'_>, values: Values, sink: Sink<'_>) -> Result<()> {
    let (mut name, mut key, mut found) = (Vec::new(), Vec::new(), Text::default());
    let mut expires = Vec::new();
    loop {
        space(source)?;
        match source.peek()? {
            None => return Ok(()),
            Some(b'\n') => {
                source.next()?;
                continue;
            }
            Some(b'{') => source.next()?,
            Some(_) => return Err(source.malformed("it is not an object")),
        };
        let line = source.line();
        let (mut has_key, mut has_value) = (false, false);
        expires.clear();
        loop {
            space(source)?;
            string(source, &mut name)?;
            space(source)?;
            colon(source)?;
            space(source)?;
            match &name[..] {
                b"key" if !has_key => {
                    has_key = true;
                    string(source, &mut key)?;
                }
                b"value" if !has_value => {
                    has_value = true;
                    match value(source, values, &mut found) {
                        // Report where the record is, not where its end was expected.
                        Err(error)
                            if source.line() != line
                                && error.kind() == ErrorKind::InvalidArgument => {}
                        outcome => outcome?,
                    }
                }
                b"expires_ms" if expires.is_empty() => {
                    value(source, Values::Any, &mut expires)?;
                    if expires.is_empty() {
                        return Err(super::malformed(line, "expires_ms is empty"));
                    }
                }
                b"key" | b"value" | b"expires_ms" => {
                    return Err(super::malformed(line, "a member is there twice"));
                }
                _ => {
                    let what = format!(
                        "there is a member besides key and value ({{\"key\":…,\"value\":…}}): {}",
                        bytes::show(&name)
                    );
                    return Err(super::malformed(line, &what));
                }
            }
            if source.line() != line {
                return Err(super::malformed(
                    line,
                    "the record does not end on its line",
                ));
            }
            space(source)?;
            match source.peek()? {
                Some(b',') => source.next()?,
                Some(b'}') => break,
                _ => return Err(super::malformed(line, "the record does not end")),
            };
        }
        source.next()?;
        if !has_key || !has_value {
            return Err(super::malformed(line, "a record has a key and a value"));
        }
        space(source)?;
        if !matches!(source.peek()?, None | Some(b'\n')) {
            return Err(super::malformed(line, "the line has more than one record"));
        }
        sink(Record {
            expires_ms: super::deadline(line, &expires)?,
            ..Record::lasting(line, &key, found.ended()?)
        })?;
    }
}

/// Skips blanks within a line.
fn space(source: &mut Source<'_>) -> Result<()> {
    while matches!(source.peek()?, Some(b' ' | b'\t' | b'\r')) {
        source.next()?;
    }
    Ok(())
}

pub(super) fn write(
    key: &[u8],
    (value, expires_ms): (Option<&[u8]>, Option<u64>),
    typed: bool,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    out.extend_from_slice(b"{\"key\":");
    write_string(key, out)?;
    if let Some(value) = value {
        out.extend_from_slice(b",\"value\":");
        // A record is one line: a text of several lines becomes a string with escaped line ends.
        let is_line = |text: &[u8]| !text.iter().any(|byte| matches!(byte, b'\n' | b'\r'));
        if typed && is_text_of_no_string(value) && is_line(value) {
            out.extend_from_slice(value);
        } else {
            write_string(value, out)?;
        }
    }
    if let Some(expires_ms) = expires_ms {
        out.extend_from_slice(format!(",\"expires_ms\":{expires_ms}").as_bytes());
    }
    out.extend_from_slice(b"}\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<(String, String)>> {
        let mut records = Vec::new();
        read(
            &mut Source::new(&mut text.as_bytes()),
            Values::Any,
            &mut |record| {
                let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
                records.push((text(record.key), text(record.value)));
                Ok(())
            },
        )?;
        Ok(records)
    }

    #[test]
    fn members_come_in_either_order_and_values_of_any_kind() {
        let text = "{\"key\":\"a\",\"value\":\"x\\u0041\"}\r\n\n { \"value\" : {\"n\": [1.50, null]} , \"key\":\"b\" } \n";
        let records = read_text(text).unwrap();
        assert_eq!(
            records,
            [
                ("a".into(), "xA".into()),
                ("b".into(), "{\"n\": [1.50, null]}".into())
            ]
        );
    }

    #[test]
    fn malformed_lines_are_named() {
        let good = "{\"key\":\"a\",\"value\":1}";
        for bad in [
            "{\"key\":\"a\"}",
            "{\"key\":\"a\",\"value\":",
            "{\"key\":\"a\",\"value\":[1,",
            "{\"key\":\"a\",\"value\":1,\"value\":2}",
            "{\"key\":\"a\",\"value\":1,\"more\":2}",
            "{\"key\":1,\"value\":1}",
            "{}",
            "[]",
            "{\"key\":\"a\",\"value\":1} 2",
            "{\"key\":\"a\",\"value\":01}",
        ] {
            let error = read_text(&format!("{good}\n{bad}\n{good}\n"))
                .unwrap_err()
                .to_string();
            assert!(error.contains("malformed line 2:"), "{bad}: {error}");
        }
    }
}
