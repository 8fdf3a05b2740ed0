//! Bytes for people: hexadecimal, escaped for a message, counts with a thousands separator.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use terrapin_base::{Error, Result};

/// Appends two lower-case digits per byte.
pub fn encode_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Appends the bytes of hexadecimal digits of either case; false if the text is none.
#[must_use]
pub fn decode_hex(text: &[u8], out: &mut Vec<u8>) -> bool {
    let digit = |c: u8| char::from(c).to_digit(16);
    let pairs = text.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return false;
    }
    for pair in pairs {
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return false;
        };
        out.push((high << 4 | low) as u8);
    }
    true
}

/// The bytes of an argument: as given, or decoded from hexadecimal digits.
pub fn argument(text: &OsStr, hex: bool) -> Result<Vec<u8>> {
    if !hex {
        return Ok(text.as_bytes().to_vec());
    }
    let mut out = Vec::new();
    if !decode_hex(text.as_bytes(), &mut out) {
        return Err(
            Error::invalid("with --hex, keys and values are pairs of hexadecimal digits")
                .with("given", show(text.as_bytes())),
        );
    }
    Ok(out)
}

/// A key for a message: escaped, and at most one line long.
#[must_use]
pub fn show(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 48;
    let head = &bytes[..bytes.len().min(SHOWN_MAX)];
    let more = if bytes.len() > SHOWN_MAX { "…" } else { "" };
    format!("\"{}{more}\"", head.escape_ascii())
}

/// Appends bytes for a terminal. Control characters that are not `kept`, and bytes that are not
/// UTF-8, become `\n`, `\r`, `\t` or `\xNN`.
pub fn escape(bytes: &[u8], kept: &str, out: &mut Vec<u8>) {
    let mut utf8 = [0; 4];
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            let shown = c.encode_utf8(&mut utf8).as_bytes();
            if c.is_control() && !kept.contains(c) {
                out.extend(shown.escape_ascii());
            } else {
                out.extend_from_slice(shown);
            }
        }
        out.extend(chunk.invalid().escape_ascii());
    }
}

/// A whole number with a thousands separator: `1,234,567`.
#[must_use]
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A count with its noun: `1 record`, `2,000 records`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{} {what}{ending}", thousands(count))
}

/// Bytes in a fitting unit: `1.5 MiB`.
#[must_use]
pub fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["bytes", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            return if unit == "bytes" {
                counted(bytes, "byte")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_round_trip_and_other_text_is_refused() {
        let bytes: Vec<u8> = (0..=255).collect();
        let (mut text, mut back) = (Vec::new(), Vec::new());
        encode_hex(&bytes, &mut text);
        assert!(decode_hex(&text, &mut back));
        assert_eq!(back, bytes);
        back.clear();
        assert!(decode_hex(b"fF00", &mut back));
        assert_eq!(back, [255, 0]);
        for wrong in [&b"f"[..], b"fg", b"0x00", b" 0", b"\xff\xff"] {
            assert!(!decode_hex(wrong, &mut Vec::new()), "{wrong:?}");
        }
    }

    #[test]
    fn a_terminal_gets_only_kept_control_characters() {
        let escaped = |bytes: &[u8], kept| {
            let mut out = Vec::new();
            escape(bytes, kept, &mut out);
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            escaped("\x1b[31mé\\😀\x7f\u{9b}\r\n".as_bytes(), ""),
            "\\x1b[31mé\\😀\\x7f\\xc2\\x9b\\r\\n"
        );
        assert_eq!(escaped(b"a\tb\0\n", "\n\t"), "a\tb\\x00\n");
        assert_eq!(escaped(b"\x9b1\xf0\x9f", ""), "\\x9b1\\xf0\\x9f");
        let all: Vec<u8> = (0..=255).collect();
        assert!(!escaped(&all, "").chars().any(char::is_control));
    }

    #[test]
    fn numbers_and_sizes_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(1_000), "1,000");
        assert_eq!(thousands(12_345_678), "12,345,678");
        assert_eq!(human(1023), "1,023 bytes");
        assert_eq!((human(0), human(1)), ("0 bytes".into(), "1 byte".into()));
        assert_eq!(
            (counted(1, "record"), counted(0, "record")),
            ("1 record".into(), "0 records".into())
        );
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(u64::MAX), "16777216.0 TiB");
        assert_eq!(show(b"a\n\xff"), "\"a\\n\\xff\"");
    }
}
