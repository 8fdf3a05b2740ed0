//! Bytes of a keyspace's options, in log records and in the catalog. Only options that were set are
//! stored:
//!
//! ```text
//! options  number of options: varint, then each by ascending tag: tag: varint, value: prefixed
//! ```
//!
//! A value is a varint, but the merge operator's name is UTF-8. `docs/FORMAT.md` lists the tags,
//! also those that this version refuses.

use std::fmt::Display;
use std::time::Duration;

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, ErrorKind, Result};

use super::keyspace::{
    SpaceAmplification, check_filter_bits, check_runs, check_separate_from, check_ttl,
};
use super::{CheckpointDistance, Compression, KeyspaceOptions, OperatorName};
use crate::types::key_form::KeyHash;
use crate::types::structure_kind::StructureKind;
use terrapin_structure::StructureId;

const STRUCTURE: u64 = 1;
const CHECKPOINT_DISTANCE: u64 = 2;
const COMPRESSION: u64 = 3;
const FILTER_BITS: u64 = 4;
const SEPARATE_FROM: u64 = 5;
const SPACE_AMPLIFICATION: u64 = 6;
const TTL_MS: u64 = 7;
const MERGE_OPERATOR: u64 = 8;
const RUNS: u64 = 9;
const KEY_HASH: u64 = 10;
const KEY_SEED: u64 = 11;

/// Appends a keyspace's options.
pub(crate) fn put_options(out: &mut Vec<u8>, options: &KeyspaceOptions) {
    // Without the defaults of this version, so that later versions may have others.
    let KeyspaceOptions {
        structure,
        checkpoint_distance,
        compression,
        filter_bits,
        space_amplification,
        separate_from,
        merge_operator,
        runs,
        ttl: _,
        key_hash,
    } = *options;
    let ttl_ms = Some(options.ttl_ms()).filter(|&ms| ms > 0);
    let key_hash = key_hash.map(KeyHash::numbers);
    let distance = checkpoint_distance.map(|distance| match distance {
        CheckpointDistance::Auto => 0,
        CheckpointDistance::Fixed(chi) => u64::from(chi),
    });
    let amplification = space_amplification.map(|bound| bound.percent().map_or(0, u64::from));
    let fields = [
        (
            STRUCTURE,
            Some(u64::from(structure.id().0)).filter(|&n| n != 0),
        ),
        (CHECKPOINT_DISTANCE, distance),
        (COMPRESSION, compression.map(|c| u64::from(c.number()))),
        (FILTER_BITS, filter_bits.map(u64::from)),
        (SEPARATE_FROM, separate_from.map(u64::from)),
        (SPACE_AMPLIFICATION, amplification),
        (TTL_MS, ttl_ms),
    ];
    let runs = [(RUNS, runs.map(u64::from))];
    let hash = [
        (KEY_HASH, key_hash.map(|(function, _)| function)),
        (KEY_SEED, key_hash.map(|(_, seed)| seed)),
    ];
    let all = fields.iter().chain(&runs).chain(&hash);
    let count = all.filter(|(_, value)| value.is_some()).count();
    put_varint(out, (count + usize::from(merge_operator.is_some())) as u64);
    put_fields(out, &fields);
    if let Some(name) = merge_operator {
        put_varint(out, MERGE_OPERATOR);
        put_prefixed(out, name.as_str().as_bytes());
    }
    put_fields(out, &runs);
    put_fields(out, &hash);
}

/// Appends the fields that are set: tag and value.
fn put_fields(out: &mut Vec<u8>, fields: &[(u64, Option<u64>)]) {
    let mut bytes = Vec::with_capacity(10);
    for &(tag, value) in fields {
        let Some(value) = value else { continue };
        put_varint(out, tag);
        bytes.clear();
        put_varint(&mut bytes, value);
        put_prefixed(out, &bytes);
    }
}

/// Reads options that [`put_options`] wrote. `keyspace` names the keyspace, for errors.
///
/// Errors: `NewerFormat` for a tag or a compression that this version does not know;
/// `Unsupported` for a compression that this build lacks; `Corrupt`.
pub(crate) fn read_options(
    reader: &mut Reader<'_>,
    keyspace: &dyn Display,
) -> Result<KeyspaceOptions> {
    let mut options = KeyspaceOptions::default();
    let (mut last, mut function, mut seed) = (0, None, None);
    for _ in 0..reader.varint()? {
        let tag = reader.varint()?;
        if tag <= last {
            return Err(reader.corrupt("the options are out of order"));
        }
        last = tag;
        let value = reader.prefixed()?;
        match tag {
            KEY_HASH | KEY_SEED => {
                let mut reader = Reader::new("option of a keyspace", value);
                let value = reader.varint()?;
                if reader.remaining() > 0 {
                    return Err(reader.corrupt("there are bytes after the value"));
                }
                match tag {
                    KEY_HASH => function = Some(value),
                    _ => seed = Some(value),
                }
            }
            _ => read_option(&mut options, tag, value, keyspace)?,
        }
    }
    options.key_hash = match (options.structure, function, seed) {
        (StructureKind::Hashed, Some(function), Some(seed)) => {
            let hash = KeyHash::from_numbers(function, seed);
            let named = || newer(format_args!("hash function {function}"), keyspace);
            Some(hash.ok_or_else(named)?)
        }
        (StructureKind::Hashed, ..) => {
            return Err(reader.corrupt("a hashed keyspace has no hash function or no seed"));
        }
        (_, None, None) => None,
        _ => return Err(reader.corrupt("a keyspace that is not hashed has a hash function")),
    };
    Ok(options)
}

fn read_option(
    options: &mut KeyspaceOptions,
    tag: u64,
    bytes: &[u8],
    keyspace: &dyn Display,
) -> Result<()> {
    if !matches!(
        tag,
        STRUCTURE
            | CHECKPOINT_DISTANCE
            | COMPRESSION
            | FILTER_BITS
            | SEPARATE_FROM
            | SPACE_AMPLIFICATION
            | TTL_MS
            | MERGE_OPERATOR
            | RUNS
    ) {
        return Err(newer(format_args!("option tag {tag}"), keyspace));
    }
    let mut reader = Reader::new("option of a keyspace", bytes);
    if tag == MERGE_OPERATOR {
        let name = std::str::from_utf8(bytes).unwrap_or_default();
        let name = OperatorName::from(name);
        name.check()
            .map_err(|_| reader.corrupt("an impossible name of a merge operator"))?;
        options.merge_operator = Some(name);
        return Ok(());
    }
    let value = reader.varint()?;
    if reader.remaining() > 0 {
        return Err(reader.corrupt("there are bytes after the value"));
    }
    let small = u32::try_from(value);
    let out_of_bounds = |message| {
        let error = Error::corrupt(message).with("keyspace", keyspace);
        error.with("option tag", tag).with("value", value)
    };
    match tag {
        STRUCTURE => {
            // The open of the keyspace finds out whether this build has the structure.
            let number = u8::try_from(value);
            let number =
                number.map_err(|_| out_of_bounds("the structure's number is too large"))?;
            options.structure = StructureId(number).into();
        }
        CHECKPOINT_DISTANCE => {
            let chi = small.map_err(|_| out_of_bounds("the checkpoint distance is too large"))?;
            options.checkpoint_distance = Some(match chi {
                0 => CheckpointDistance::Auto,
                chi => CheckpointDistance::Fixed(chi),
            });
        }
        COMPRESSION => {
            let number = u8::try_from(value).ok();
            let compression = number.and_then(Compression::from_number);
            let compression =
                compression.ok_or_else(|| newer(format_args!("compression {value}"), keyspace))?;
            compression
                .check()
                .map_err(|e| e.with("keyspace", keyspace))?;
            options.compression = Some(compression);
        }
        FILTER_BITS => {
            let bits = small.ok().filter(|&bits| check_filter_bits(bits).is_ok());
            let bits = bits.ok_or_else(|| out_of_bounds("the filter bits are out of bounds"))?;
            options.filter_bits = Some(bits);
        }
        TTL_MS => {
            let ttl = Duration::from_millis(value);
            check_ttl(ttl).map_err(|_| out_of_bounds("the time to live is out of bounds"))?;
            options.ttl = Some(ttl);
        }
        RUNS => {
            let runs = small.ok().filter(|&runs| check_runs(runs).is_ok());
            let message = "the number of sorted runs is out of bounds";
            options.runs = Some(runs.ok_or_else(|| out_of_bounds(message))?);
        }
        SEPARATE_FROM => {
            let bytes = small
                .ok()
                .filter(|&bytes| check_separate_from(bytes).is_ok());
            let message = "the threshold of separation is out of bounds";
            options.separate_from = Some(bytes.ok_or_else(|| out_of_bounds(message))?);
        }
        _ => {
            let bound = small.ok().map(|percent| match percent {
                0 => SpaceAmplification::Unbounded,
                percent => SpaceAmplification::Percent(percent),
            });
            let bound = bound.filter(|bound| bound.is_valid());
            let message = "the space amplification is out of bounds";
            options.space_amplification = Some(bound.ok_or_else(|| out_of_bounds(message))?);
        }
    }
    Ok(())
}

/// The error for something that a later version stored.
fn newer(what: std::fmt::Arguments<'_>, keyspace: &dyn Display) -> Error {
    let message = format!(
        "{what} of keyspace {keyspace}: made by a newer Terrapin, open the database with that version"
    );
    Error::new(ErrorKind::NewerFormat, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(options: &KeyspaceOptions) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_options(&mut bytes, options);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<KeyspaceOptions> {
        let mut reader = Reader::new("test", bytes);
        let options = read_options(&mut reader, &"birds")?;
        assert_eq!(reader.remaining(), 0);
        Ok(options)
    }

    fn all() -> KeyspaceOptions {
        KeyspaceOptions::new()
            .checkpoint_distance(CheckpointDistance::Fixed(300))
            .compression(Compression::Lz4)
            .filter_bits(8)
            .space_amplification(SpaceAmplification::Percent(130))
            .ttl(Duration::from_micros(299_001))
            .merge_operator("max")
            .runs(24)
    }

    #[test]
    fn the_bytes_of_options_match_the_format_document() {
        assert_eq!(bytes_of(&KeyspaceOptions::new()), [0]);
        let bytes = [
            7, // options
            2, 2, 0xac, 0x02, // χ 300
            3, 1, 1, // LZ4
            4, 1, 8, // 8 bits a record
            6, 2, 0x82, 0x01, // 130 per cent
            7, 2, 0xac, 0x02, // 300 ms to live
            8, 3, b'm', b'a', b'x', // operator
            9, 1, 24, // runs
        ];
        assert_eq!(bytes_of(&all()), bytes);
        let special = KeyspaceOptions::new()
            .checkpoint_distance(CheckpointDistance::Auto)
            .compression(Compression::None)
            .filter_bits(0)
            .space_amplification(SpaceAmplification::Unbounded);
        assert_eq!(bytes_of(&special), [4, 2, 1, 0, 3, 1, 0, 4, 1, 0, 6, 1, 0]);
        for options in [KeyspaceOptions::new(), all(), special] {
            assert_eq!(read(&bytes_of(&options)).unwrap(), options);
        }
    }

    #[test]
    fn what_a_later_version_stores_is_refused_by_name() {
        for (bytes, named) in [
            (
                &[2, 4, 1, 8, 77, 2, 0, 0][..],
                "option tag 77 of keyspace birds",
            ),
            (&[1, 3, 1, 3], "compression 3 of keyspace birds"),
        ] {
            let error = read(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NewerFormat, "{error}");
            let text = error.to_string();
            assert!(
                text.contains(named) && text.contains("newer Terrapin"),
                "{text}"
            );
        }
    }

    #[test]
    fn damaged_options_are_refused() {
        let bytes = bytes_of(&all());
        assert!((0..bytes.len()).all(|n| read(&bytes[..n]).is_err()));
        for bytes in [
            &[2, 4, 1, 8, 4, 1, 8][..], // a tag twice
            &[2, 4, 1, 8, 3, 1, 0],     // tags out of order
            &[1, 0, 1, 0],              // no tag is 0
            &[1, 1, 2, 0x80, 2],        // structure 256
            &[1, 4, 2, 8, 0],           // a byte behind the value
            &[1, 4, 0],                 // no value
            &[1, 4, 1, 5],              // filter bits out of bounds
            &[1, 4, 1, 21],
            &[1, 5, 1, 100], // threshold out of bounds
            &[1, 8, 0],      // no name
            &[1, 9, 1, 1],   // runs out of bounds
            &[1, 9, 1, 65],
            &[1, 7, 1, 0], // a time of 0
            &[1, 7, 7, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
            &[1, 8, 1, b'\n'],
            &[1, 8, 1, 0xff],
            &[1, 6, 1, 100], // amplification out of bounds
            &[1, 6, 3, 0x91, 0x4e, 0],
            &[1, 2, 5, 0x80, 0x80, 0x80, 0x80, 0x10], // χ of 2^32
        ] {
            let error = read(bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{bytes:?}: {error}");
        }
        let zstd = read(&[1, 3, 1, 2]);
        assert_eq!(zstd.is_ok(), cfg!(feature = "zstd"));
    }
}
