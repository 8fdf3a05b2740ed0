//! Values of options beyond clap's own parsers: sizes, χ, durability, compression, times.

use std::ops::Range;
use std::time::Duration;

use clap::ValueEnum;
use terrapin::{
    CheckpointDistance, Compression, Durability, Keyspace, KeyspaceOptions, OperatorName,
    SpaceAmplification, StructureKind, built_in_operator,
};

/// Bytes from `1000`, `64MiB`, `64M`, `64MB`, `1.5GiB`.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(
                "a size is a number of bytes, or a number with KiB, MiB, GiB, KB, MB or GB".into(),
            );
        }
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(factor)
            .ok_or_else(|| "the size is too large".into());
    }
    let number: f64 = number
        .parse()
        .map_err(|_| String::from("a size begins with a number"))?;
    let bytes = number * factor as f64;
    if bytes < (1u64 << 53) as f64 {
        Ok(bytes as u64)
    } else {
        Err("the size is too large".into())
    }
}

/// A whole number from 0.
pub fn whole<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let number = text.parse::<u64>().ok().and_then(|n| N::try_from(n).ok());
    number.ok_or_else(|| "a whole number from 0 on is expected".into())
}

/// A whole number from 1.
pub fn at_least_one<N: TryFrom<u64>>(text: &str) -> Result<N, String> {
    let number = whole::<u64>(text).ok().filter(|&number| number > 0);
    let number = number.and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| "a whole number from 1 on is expected".into())
}

/// χ from `auto` or a number from 1.
pub fn distance(text: &str) -> Result<CheckpointDistance, String> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(CheckpointDistance::Auto);
    }
    match text.parse::<u32>() {
        Ok(chi) if chi > 0 => Ok(CheckpointDistance::Fixed(chi)),
        _ => Err("the checkpoint distance is a whole number from 1 on, or auto".into()),
    }
}

/// An option of a keyspace: a value of its own, or none from `default`, which follows the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own<T>(pub Option<T>);

fn own<T>(text: &str, read: impl FnOnce(&str) -> Result<T, String>) -> Result<Own<T>, String> {
    if text.eq_ignore_ascii_case("default") {
        return Ok(Own(None));
    }
    read(text)
        .map(|value| Own(Some(value)))
        .map_err(|message| format!("{message}, or default"))
}

/// χ as [`distance`] reads it, or `default`.
pub fn own_distance(text: &str) -> Result<Own<CheckpointDistance>, String> {
    own(text, distance)
}

/// The name of a compression, or `default`.
pub fn own_compression(text: &str) -> Result<Own<Compression>, String> {
    own(text, |text| match CompressionName::from_str(text, true) {
        Ok(name) => Ok(name.into()),
        Err(_) => {
            let names = CompressionName::value_variants().iter();
            let names = names.filter_map(|name| name.to_possible_value());
            let names: Vec<_> = names.map(|name| name.get_name().to_owned()).collect();
            Err(format!("possible values: {}", names.join(", ")))
        }
    })
}

/// A range of bytes: `A..B`, `A..` or `..B`.
pub fn byte_range(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("a range such as 0..1MiB")?;
    let end = |text: &str, otherwise| match text.is_empty() {
        true => Ok(otherwise),
        false => size(text),
    };
    let range = end(from, 0)?..end(to, u64::MAX)?;
    match range.start <= range.end {
        true => Ok(range),
        false => Err("the range ends before its start".to_owned()),
    }
}

/// A time in seconds, with or without a fraction.
pub fn time(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "a number of seconds, such as 60 or 0.5".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "a time that is not below 0".to_owned())
}

/// A time that values last, in seconds, or `default`.
pub fn own_ttl(text: &str) -> Result<Own<Duration>, String> {
    own(text, |text| {
        let ttl = time(text)?;
        let options = KeyspaceOptions::new().ttl(ttl);
        options.check().map_err(|e| e.message().to_owned())?;
        Ok(ttl)
    })
}

/// A built-in merge operator, or `default`.
pub fn own_merge_operator(text: &str) -> Result<Own<OperatorName>, String> {
    own(text, |text| {
        match built_in_operator(text) {
        Some(operator) => Ok(OperatorName::from(operator.name())),
        None => Err(
            "possible values: add-i64, saturating-add-i64, checked-add-i64, max, min, append, bit-or"
                .to_owned(),
        ),
    }
    })
}

/// Bits of filter for each record, or `default`.
pub fn own_filter_bits(text: &str) -> Result<Own<u32>, String> {
    own(text, |text| {
        let bits = whole(text)?;
        let options = KeyspaceOptions::new().filter_bits(bits);
        options.check().map_err(|e| e.message().to_owned())?;
        Ok(bits)
    })
}

/// Sorted runs: a number, or `default`.
pub fn own_runs(text: &str) -> Result<Own<u32>, String> {
    own(text, |text| {
        let runs = whole(text)?;
        let options = KeyspaceOptions::new().runs(runs);
        options.check().map_err(|e| e.message().to_owned())?;
        Ok(runs)
    })
}

/// A bound of space amplification: a factor, `unbounded`, or `default`.
pub fn own_space_amplification(text: &str) -> Result<Own<SpaceAmplification>, String> {
    own(text, |text| {
        let bound = match text.eq_ignore_ascii_case("unbounded") {
            true => SpaceAmplification::Unbounded,
            // What is no number becomes a factor that the check refuses.
            false => text.parse().unwrap_or(f64::NAN).into(),
        };
        let options = KeyspaceOptions::new().space_amplification(bound);
        options.check().map_err(|e| e.message().to_owned())?;
        Ok(bound)
    })
}

/// A length from which on values are separated, or `none`.
pub fn separate_from(text: &str) -> Result<Own<u32>, String> {
    if text.eq_ignore_ascii_case("none") || text.eq_ignore_ascii_case("default") {
        return Ok(Own(None));
    }
    let bytes = u32::try_from(size(text)?).unwrap_or(u32::MAX);
    let options = KeyspaceOptions::new().separate_from(bytes);
    options.check().map_err(|e| e.message().to_owned())?;
    Ok(Own(Some(bytes)))
}

/// The name of a structure.
pub fn structure(text: &str) -> Result<StructureKind, String> {
    text.parse()
        .map_err(|e: terrapin_base::Error| e.message().to_owned())
}

/// A keyspace's name, checked before anything is opened or created.
pub fn keyspace_name(text: &str) -> Result<String, String> {
    match Keyspace::check_name(text) {
        Ok(()) => Ok(text.to_owned()),
        Err(error) => Err(error.message().to_owned()),
    }
}

/// The durability of a write.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum DurabilityName {
    /// Survives the death of the process; a power cut costs at most a tenth of a second
    Process,
    /// On stable storage before the write returns
    Sync,
    /// Not logged: durable with the next checkpoint
    None,
}

impl From<DurabilityName> for Durability {
    fn from(name: DurabilityName) -> Self {
        match name {
            DurabilityName::Process => Durability::Process,
            DurabilityName::Sync => Durability::Sync,
            DurabilityName::None => Durability::None,
        }
    }
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum CompressionName {
    /// Not at all
    None,
    /// LZ4: cheap both ways
    Lz4,
    /// Zstandard at level 3: smaller, at several times the processor time
    #[cfg(feature = "zstd")]
    Zstd,
}

impl From<CompressionName> for Compression {
    fn from(name: CompressionName) -> Self {
        match name {
            CompressionName::None => Compression::None,
            CompressionName::Lz4 => Compression::Lz4,
            #[cfg(feature = "zstd")]
            CompressionName::Zstd => Compression::Zstd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_know_both_kinds_of_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("64M", 64 << 20),
            ("64mb", 64_000_000),
            ("1.5GiB", 3 << 29),
            ("2 KiB", 2048),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in [
            "",
            "MiB",
            "-1",
            "1XB",
            "1.2.3",
            "99999999999GiB",
            "1e999",
            ".",
        ] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn whole_numbers_have_no_sign_and_a_limit() {
        assert_eq!(whole::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(whole::<u32>("0"), Ok(0));
        for text in ["-1", "", "1.5", "1,000", "1e3", "4294967296"] {
            assert!(
                whole::<u32>(text).unwrap_err().contains("from 0 on"),
                "{text}"
            );
        }
        assert_eq!(at_least_one::<u32>("1"), Ok(1));
        assert!(at_least_one::<u32>("0").unwrap_err().contains("from 1 on"));
    }

    #[test]
    fn a_checkpoint_distance_is_auto_or_a_positive_number() {
        assert_eq!(distance("auto"), Ok(CheckpointDistance::Auto));
        assert_eq!(distance("16"), Ok(CheckpointDistance::Fixed(16)));
        for text in ["0", "-1", "1.5", "", "much"] {
            assert!(distance(text).is_err(), "{text}");
            assert!(own_distance(text).is_err(), "{text}");
        }
        assert_eq!(own_distance("default"), Ok(Own(None)));
        assert_eq!(
            own_distance("16"),
            Ok(Own(Some(CheckpointDistance::Fixed(16))))
        );
    }

    #[test]
    fn options_of_a_keyspace_have_bounds_or_follow_the_database() {
        assert_eq!(own_filter_bits("0"), Ok(Own(Some(0))));
        assert_eq!(own_filter_bits("8"), Ok(Own(Some(8))));
        assert_eq!(own_filter_bits("Default"), Ok(Own(None)));
        for text in ["5", "21", "-1", "many"] {
            assert!(own_filter_bits(text).is_err(), "{text}");
        }
        let of = own_space_amplification;
        assert_eq!(of("1.3"), Ok(Own(Some(SpaceAmplification::Percent(130)))));
        assert_eq!(
            of("unbounded"),
            Ok(Own(Some(SpaceAmplification::Unbounded)))
        );
        for text in ["1.0", "101", "NaN", "inf", "much"] {
            let error = of(text).unwrap_err();
            assert!(error.contains("1.1 to 100"), "{text}: {error}");
        }
        assert_eq!(own_compression("lz4"), Ok(Own(Some(Compression::Lz4))));
        let error = own_compression("gzip").unwrap_err();
        assert!(
            error.contains("none, lz4") && error.contains("or default"),
            "{error}"
        );
        assert_eq!(structure("leveled"), Ok(StructureKind::Leveled));
        assert_eq!(structure("hashed"), Ok(StructureKind::Hashed));
        assert_eq!(structure("tiered"), Ok(StructureKind::Tiered));
        assert!(structure("lsm").unwrap_err().contains("no such structure"));
    }
}
