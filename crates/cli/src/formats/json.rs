//! json: one object of key → value, read as a stream. A string's content is the value. Any other
//! JSON value is stored as its text, and an export returns a string of that text.

use terrapin_base::Result;

use super::text::{Out, Text};
use super::{Record, Sink, Source};

/// Most arrays and objects around a part of a value.
const DEPTH_MAX: usize = 1 << 20;

/// The values that are read.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// Strings, and the text of any other JSON value.
    Any,
    /// Strings only.
    Strings,
}

pub(super) fn read(source: &mut Source<'_>, values: Values, sink: Sink<'_>) -> Result<()> {
    let (mut key, mut found) = (Vec::new(), Text::default());
    space(source)?;
    match source.next()? {
        Some(b'{') => {}
        Some(b'[') => {
            return Err(source.malformed(
                "the input is an array, not an object of key → value; records of their own are read as jsonl, one {\"key\":…,\"value\":…} a line",
            ));
        }
        _ => return Err(source.malformed("the input is not an object of key → value")),
    }
    space(source)?;
    if source.peek()? == Some(b'}') {
        source.next()?;
    } else {
        loop {
            space(source)?;
            let line = source.line();
            string(source, &mut key)?;
            space(source)?;
            colon(source)?;
            space(source)?;
            value(source, values, &mut found)?;
            sink(Record::lasting(line, &key, found.ended()?))?;
            space(source)?;
            match source.peek()? {
                Some(b',') => source.next()?,
                Some(b'}') => break,
                None => return Err(source.malformed("the object does not end")),
                Some(_) => {
                    return Err(
                        source.malformed("neither a comma nor the object's end follows a value")
                    );
                }
            };
        }
        source.next()?;
    }
    space(source)?;
    match source.peek()? {
        None => Ok(()),
        Some(_) => Err(source.malformed("there is something behind the object")),
    }
}

fn space(source: &mut Source<'_>) -> Result<()> {
    while matches!(source.peek()?, Some(b' ' | b'\t' | b'\r' | b'\n')) {
        source.next()?;
    }
    Ok(())
}

pub(super) fn colon(source: &mut Source<'_>) -> Result<()> {
    if source.peek()? != Some(b':') {
        return Err(source.malformed("there is no colon behind a name"));
    }
    source.next()?;
    Ok(())
}

/// Reads a value: a string's content, or the text of anything else.
pub(super) fn value(source: &mut Source<'_>, values: Values, out: &mut impl Out) -> Result<()> {
    if source.peek()? == Some(b'"') {
        return string(source, out);
    }
    if values == Values::Strings {
        return Err(source.malformed("with --hex, a value is a string"));
    }
    source.empty(out)?;
    text(source, out)?;
    check_utf8(source, out)
}

/// Reads a string and resolves its escapes.
pub(super) fn string(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    source.empty(out)?;
    if source.peek()? != Some(b'"') {
        return Err(source.malformed("there is no string where one should be"));
    }
    source.next()?;
    loop {
        source.until(out, |byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
        match source.peek()? {
            Some(b'"') => {
                source.next()?;
                return check_utf8(source, out);
            }
            Some(b'\\') => {
                source.next()?;
                escape(source, out)?;
            }
            _ => return Err(unended(source)),
        }
    }
}

fn unended(source: &Source<'_>) -> terrapin_base::Error {
    source.malformed("a string does not end, or has a control character in it")
}

fn check_utf8(source: &Source<'_>, text: &impl Out) -> Result<()> {
    match text.is_utf8() {
        true => Ok(()),
        false => Err(source.malformed("it is not UTF-8")),
    }
}

fn escape(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    let byte = match source.peek()? {
        Some(byte @ (b'"' | b'\\' | b'/')) => byte,
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'u') => {
            source.next()?;
            let character = unicode(source)?;
            let mut utf8 = [0; 4];
            return source.add(out, character.encode_utf8(&mut utf8).as_bytes());
        }
        _ => return Err(source.malformed("there is no such escape in a string")),
    };
    source.next()?;
    source.add(out, &[byte])
}

/// Behind `\u`: four digits, and four more behind another `\u` if the first are half of a pair.
fn unicode(source: &mut Source<'_>) -> Result<char> {
    let half =
        |source: &Source<'_>| source.malformed("a string has half of a surrogate pair in it");
    let first = four_digits(source)?;
    if !(0xd800..0xe000).contains(&first) {
        return char::from_u32(first).ok_or_else(|| half(source));
    }
    for expected in [b'\\', b'u'] {
        if source.peek()? != Some(expected) {
            return Err(half(source));
        }
        source.next()?;
    }
    let second = four_digits(source)?;
    if first >= 0xdc00 || !(0xdc00..0xe000).contains(&second) {
        return Err(half(source));
    }
    let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    char::from_u32(code).ok_or_else(|| half(source))
}

fn four_digits(source: &mut Source<'_>) -> Result<u32> {
    let mut code = 0;
    for _ in 0..4 {
        let digit = source
            .peek()?
            .and_then(|byte| char::from(byte).to_digit(16));
        let Some(digit) = digit else {
            return Err(source.malformed("four hexadecimal digits must stand behind \\u"));
        };
        source.next()?;
        code = code << 4 | digit;
    }
    Ok(code)
}

/// Copies a value that is not a string as it is, and checks its grammar. Depth costs one byte per
/// level, not stack.
fn text(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    let mut open = Vec::new();
    loop {
        if open.len() > DEPTH_MAX {
            return Err(source.malformed("a value is nested too deeply"));
        }
        match source.peek()? {
            Some(b'{') => {
                copy(source, out)?;
                copy_space(source, out)?;
                if source.peek()? != Some(b'}') {
                    open.push(b'}');
                    copy_name(source, out)?;
                    continue;
                }
                copy(source, out)?;
            }
            Some(b'[') => {
                copy(source, out)?;
                copy_space(source, out)?;
                if source.peek()? != Some(b']') {
                    open.push(b']');
                    continue;
                }
                copy(source, out)?;
            }
            Some(b'"') => copy_string(source, out)?,
            Some(b't') => copy_word(source, out, b"true")?,
            Some(b'f') => copy_word(source, out, b"false")?,
            Some(b'n') => copy_word(source, out, b"null")?,
            Some(b'-' | b'0'..=b'9') => copy_number(source, out)?,
            _ => return Err(source.malformed("there is no value where one should be")),
        }
        // A value has ended; its container may end too.
        loop {
            let Some(&close) = open.last() else {
                return Ok(());
            };
            copy_space(source, out)?;
            match source.peek()? {
                Some(b',') => {
                    copy(source, out)?;
                    copy_space(source, out)?;
                    if close == b'}' {
                        copy_name(source, out)?;
                    }
                    break;
                }
                Some(byte) if byte == close => {
                    copy(source, out)?;
                    open.pop();
                }
                _ => return Err(source.malformed("a value does not end")),
            }
        }
    }
}

fn copy(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    match source.next()? {
        Some(byte) => source.add(out, &[byte]),
        None => Ok(()),
    }
}

fn copy_space(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    while matches!(source.peek()?, Some(b' ' | b'\t' | b'\r' | b'\n')) {
        copy(source, out)?;
    }
    Ok(())
}

fn copy_name(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    copy_string(source, out)?;
    copy_space(source, out)?;
    if source.peek()? != Some(b':') {
        return Err(source.malformed("there is no colon behind a name"));
    }
    copy(source, out)?;
    copy_space(source, out)
}

fn copy_string(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    if source.peek()? != Some(b'"') {
        return Err(source.malformed("there is no string where one should be"));
    }
    copy(source, out)?;
    let mut said: Vec<u8> = Vec::new();
    loop {
        source.until(out, |byte| byte == b'"' || byte == b'\\' || byte < 0x20)?;
        match source.peek()? {
            Some(b'"') => return copy(source, out),
            Some(b'\\') => {
                copy(source, out)?;
                match source.peek()? {
                    Some(b'u') => {
                        copy(source, out)?;
                        for _ in 0..4 {
                            if !source.peek()?.is_some_and(|byte| byte.is_ascii_hexdigit()) {
                                return Err(source
                                    .malformed("four hexadecimal digits must stand behind \\u"));
                            }
                            copy(source, out)?;
                        }
                    }
                    other => {
                        said.clear();
                        escape(source, &mut said)?;
                        if let Some(byte) = other {
                            source.add(out, &[byte])?;
                        }
                    }
                }
            }
            _ => return Err(unended(source)),
        }
    }
}

fn copy_word(source: &mut Source<'_>, out: &mut impl Out, word: &[u8]) -> Result<()> {
    for &byte in word {
        if source.peek()? != Some(byte) {
            return Err(source.malformed("there is no value where one should be"));
        }
        copy(source, out)?;
    }
    Ok(())
}

fn copy_number(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    if source.peek()? == Some(b'-') {
        copy(source, out)?;
    }
    if source.peek()? == Some(b'0') {
        copy(source, out)?;
    } else {
        copy_digits(source, out)?;
    }
    if source.peek()? == Some(b'.') {
        copy(source, out)?;
        copy_digits(source, out)?;
    }
    if matches!(source.peek()?, Some(b'e' | b'E')) {
        copy(source, out)?;
        if matches!(source.peek()?, Some(b'+' | b'-')) {
            copy(source, out)?;
        }
        copy_digits(source, out)?;
    }
    Ok(())
}

fn copy_digits(source: &mut Source<'_>, out: &mut impl Out) -> Result<()> {
    let before = out.length();
    source.until(out, |byte| !byte.is_ascii_digit())?;
    if out.length() == before {
        return Err(source.malformed("a number lacks its digits"));
    }
    Ok(())
}

/// Writes a member of the object, with the object's beginning before the first. Without a value, it
/// writes an array of keys.
pub(super) fn write(
    first: bool,
    key: &[u8],
    value: Option<&[u8]>,
    typed: bool,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    out.extend_from_slice(match (first, value) {
        (true, Some(_)) => b"{\n  ",
        (true, None) => b"[\n  ",
        (false, _) => b",\n  ",
    });
    write_string(key, out)?;
    let Some(value) = value else { return Ok(()) };
    out.extend_from_slice(b": ");
    if typed && is_text_of_no_string(value) {
        out.extend_from_slice(value);
        return Ok(());
    }
    write_string(value, out)
}

/// Whether bytes are the JSON text of exactly one value that is not a string: what an import stores
/// for such a value.
pub(super) fn is_text_of_no_string(bytes: &[u8]) -> bool {
    // Most values are no JSON at all; the first byte shows that.
    matches!(
        bytes.first(),
        Some(b'{' | b'[' | b't' | b'f' | b'n' | b'-' | b'0'..=b'9')
    ) && serde_json::from_slice::<&serde_json::value::RawValue>(bytes)
        .is_ok_and(|text| text.get().len() == bytes.len())
}

/// Writes the end of the object, or of the array of keys.
pub(super) fn end(empty: bool, keys_only: bool, out: &mut Vec<u8>) {
    out.extend_from_slice(match (empty, keys_only) {
        (true, false) => b"{}\n",
        (true, true) => b"[]\n",
        (false, false) => b"\n}\n",
        (false, true) => b"\n]\n",
    });
}

/// Why bytes that are no text are refused.
pub(super) const NO_BYTES: &str =
    "json cannot carry bytes that are not UTF-8; it can with --hex, and csv can";

/// Writes a part of a string, which may end within a character, and escapes only what must be
/// escaped.
pub(super) fn write_escaped(part: &[u8], out: &mut Vec<u8>) {
    for &byte in part {
        let short = match byte {
            b'"' | b'\\' => byte,
            8 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            12 => b'f',
            b'\r' => b'r',
            0..0x20 => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                continue;
            }
            _ => {
                out.push(byte);
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
}

/// Writes a string and escapes only what must be escaped.
pub(super) fn write_string(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), &'static str> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(NO_BYTES);
    };
    serde_json::to_writer(out, text).map_err(|_| "json cannot carry this text; csv can")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn read_text(text: &[u8]) -> Result<Vec<(String, String)>> {
        let mut records = Vec::new();
        read(&mut Source::new(&mut &*text), Values::Any, &mut |record| {
            let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
            records.push((text(record.key), text(record.value)));
            Ok(())
        })?;
        Ok(records)
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::hash_map(any::<String>(), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn agrees_with_another_parser_on_what_is_json(
            members in prop::collection::vec((any::<String>(), any_value()), 0..6), pretty: bool
        ) {
            let object = Value::Object(members.into_iter().collect());
            let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
            let records = read_text(text.as_bytes()).unwrap();
            let Value::Object(expected) = object else { unreachable!() };
            prop_assert_eq!(records.len(), expected.len());
            for (key, value) in records {
                match &expected[&key] {
                    Value::String(said) => prop_assert_eq!(said, &value),
                    // Floats are compared as text: the other parser's last digit may differ from
                    // what it wrote.
                    other => prop_assert_eq!(
                        serde_json::from_str::<Value>(&value).unwrap(),
                        serde_json::from_str::<Value>(&other.to_string()).unwrap()
                    ),
                }
            }
        }

        #[test]
        fn agrees_with_another_parser_on_what_is_not(
            value in any_value(), at in any::<prop::sample::Index>(), byte in prop::sample::select(&b"{}[],:\"\\0e.-+ntfu \n"[..])
        ) {
            let mut text = format!("{{\"k\":{value}}}").into_bytes();
            let at = at.index(text.len());
            text[at] = byte;
            let theirs = serde_json::from_slice::<Value>(&text).is_ok_and(|v| v.is_object());
            // A string within a stored text may have half of a surrogate pair, and a number may
            // exceed every float.
            let lenient = text.windows(2).any(|w| w == b"\\u") || text.iter().any(|b| matches!(b, b'e' | b'E'));
            let ours = read_text(&text);
            prop_assert!(ours.is_ok() == theirs || lenient, "{:?}: {:?}", String::from_utf8_lossy(&text), ours);
        }
    }

    #[test]
    fn texts_are_kept_as_they_stand() {
        let text = br#" {"a": 1.50e+3 ,"b":null,"c":{ "x" : [ 1, "\u00e9\ud800" ] },"d":"\ud83d\ude00\/\b","a":"last"} "#;
        let expected = [
            ("a", "1.50e+3"),
            ("b", "null"),
            ("c", r#"{ "x" : [ 1, "\u00e9\ud800" ] }"#),
            ("d", "😀/\u{8}"),
            ("a", "last"),
        ];
        assert_eq!(
            read_text(text).unwrap(),
            expected.map(|(k, v)| (k.to_string(), v.to_string()))
        );
        assert_eq!(read_text(b"{}").unwrap(), []);
    }

    #[test]
    fn malformed_lines_are_named() {
        for (text, line) in [
            ("", 1),
            ("[]", 1),
            ("{\n\"a\":1,\n}", 3),
            ("{\n\"a\":1\n\"b\":2}", 3),
            ("{\n\"a\":\"\\ud800\"}", 2),
            ("{\n\"a\":\"x\ny\"}", 2),
            ("{\"a\":tru}", 1),
            ("{\"a\":[1,2}}", 1),
            ("{\"a\":1}\n\nx", 3),
            ("{\"a\":1", 1),
            ("{\"a\":-}", 1),
            ("{\"a\":1.}", 1),
            ("{\"a\" 1}", 1),
            ("{a:1}", 1),
        ] {
            let error = read_text(text.as_bytes()).unwrap_err().to_string();
            assert!(
                error.contains(&format!("malformed line {line}:")),
                "{text:?}: {error}"
            );
        }
        assert!(
            read_text(b"{\"a\":\"\xff\"}")
                .unwrap_err()
                .to_string()
                .contains("UTF-8")
        );
    }

    #[test]
    fn depth_costs_no_stack_and_endless_values_end() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(200_000), "]".repeat(200_000));
        assert_eq!(read_text(deep.as_bytes()).unwrap()[0].1.len(), 400_000);
        for endless in [
            "{\"a\":[",
            "{\"a\":\"",
            "{\"a\":1",
            "{\"a\":[1,",
            "{\"a\":[ ",
        ] {
            let mut text = endless.as_bytes().to_vec();
            let last = text[text.len() - 1];
            text.resize(8 << 20, if last == b'"' { b'x' } else { last });
            assert!(read_text(&text).is_err(), "{endless}");
        }
    }
}
