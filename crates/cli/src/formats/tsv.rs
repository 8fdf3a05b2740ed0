//! tsv: the key, a tab, the rest of the line is the value. Nothing is escaped, so a carriage return
//! belongs to the value.

use terrapin_base::Result;

use super::text::Text;
use super::{Record, Sink, Source};

pub(super) fn read(source: &mut Source<'_>, sink: Sink<'_>) -> Result<()> {
    let (mut key, mut value) = (Vec::new(), Text::default());
    while source.peek()?.is_some() {
        let line = source.line();
        key.clear();
        source.empty(&mut value)?;
        source.until(&mut key, |byte| byte == b'\t' || byte == b'\n')?;
        if source.peek()? != Some(b'\t') {
            return Err(source.malformed("there is no tab between key and value"));
        }
        source.next()?;
        source.until(&mut value, |byte| byte == b'\n')?;
        source.next()?;
        sink(Record::lasting(line, &key, value.ended()?))?;
    }
    Ok(())
}

/// Why a value with a newline is refused.
pub(super) const NO_LINES: &str =
    "tsv cannot carry a value with a newline in it; csv can, or --hex";

pub(super) fn write(
    key: &[u8],
    value: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    if key.iter().any(|byte| b"\t\n".contains(byte)) {
        return Err("tsv cannot carry a key with a tab or a newline in it; csv can, or --hex");
    }
    out.extend_from_slice(key);
    if let Some(value) = value {
        if value.contains(&b'\n') {
            return Err(NO_LINES);
        }
        out.push(b'\t');
        out.extend_from_slice(value);
    }
    out.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<(u64, String, String)>> {
        let mut records = Vec::new();
        read(&mut Source::new(&mut text.as_bytes()), &mut |record| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            records.push((record.line, text(record.key), text(record.value)));
            Ok(())
        })?;
        Ok(records)
    }

    #[test]
    fn nothing_is_escaped_and_the_last_newline_may_be_missing() {
        let records = read_text("a\tb\tc\\n\r\n\t\nx\ty").unwrap();
        let expected = [(1, "a", "b\tc\\n\r"), (2, "", ""), (3, "x", "y")];
        assert_eq!(
            records,
            expected.map(|(l, k, v)| (l, k.to_string(), v.to_string()))
        );
    }

    #[test]
    fn a_line_without_a_tab_is_named() {
        for (text, line) in [("a\tb\nno tab\nc\td\n", 2), ("\n", 1), ("a\tb\nend", 2)] {
            let error = read_text(text).unwrap_err().to_string();
            assert!(
                error.contains(&format!("malformed line {line}:")),
                "{error}"
            );
        }
    }
}
