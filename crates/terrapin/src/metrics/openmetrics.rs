//! [`Metrics`] in the text format of OpenMetrics 1.0, which Prometheus and most collectors read.

use std::fmt::{Display, Write};

use super::{Latency, Metrics};

/// Upper bounds of histogram buckets: powers of two of nanoseconds, from a quarter of a microsecond
/// to 68 seconds. A bound is one nanosecond below the power, since fine buckets end there.
const BOUNDS: std::ops::RangeInclusive<u32> = 8..=36;

impl Metrics {
    /// The figures as OpenMetrics text, for a scrape endpoint that the application serves with the
    /// content type `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    ///
    /// Every name begins with `terrapin_`. Times are seconds and sizes are bytes. Figures of
    /// keyspaces have the label `keyspace`; keyspaces that were not used since the open are left
    /// out. Costs microseconds, and about 600 bytes of text for each used keyspace.
    ///
    /// ```
    /// # fn main() -> terrapin::Result<()> {
    /// # let directory = std::env::temp_dir().join(format!("terrapin-doc-openmetrics-{}", std::process::id()));
    /// # let database = terrapin::Database::open(&directory)?;
    /// database.keyspace("fruit")?.put("apple", "sweet")?;
    /// let text = database.metrics().openmetrics();
    /// assert!(text.contains("terrapin_puts_total{keyspace=\"fruit\"} 1\n"));
    /// assert!(text.ends_with("# EOF\n"));
    /// # database.close()?;
    /// # let _ = std::fs::remove_dir_all(directory);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn openmetrics(&self) -> String {
        let mut text = Text::default();
        self.write_keyspaces(&mut text);
        self.write_caches(&mut text);
        self.write_device(&mut text);
        self.write_background(&mut text);
        self.write_latencies(&mut text);
        self.write_memory(&mut text);
        text.0.push_str("# EOF\n");
        text.0
    }

    fn write_keyspaces(&self, text: &mut Text) {
        let keyspaces = &self.keyspaces;
        let mut counter = |name, unit, help, value: fn(&super::KeyspaceMetrics) -> u64| {
            let values = keyspaces.iter().map(|k| (k.name.as_str(), value(k)));
            text.family(name, Kind::Counter, unit, help);
            text.samples(name, "_total", "keyspace", values);
        };
        counter("puts", "", "Puts, those of batches included.", |k| k.puts);
        counter("deletes", "", "Deletes, those of batches included.", |k| {
            k.deletes
        });
        counter("gets", "", "Keys looked up.", |k| k.gets);
        counter("ranges", "", "Ranges opened.", |k| k.scans);
        counter("range_records", "", "Records that ranges fetched.", |k| {
            k.scanned_records
        });
        counter(
            "user_written_bytes",
            "bytes",
            "Key and value bytes of puts, deletes and ingests.",
            |k| k.user_bytes_written,
        );
        let values = keyspaces
            .iter()
            .map(|k| (k.name.as_str(), k.memtable_bytes));
        let name = "memtable_bytes";
        text.family(name, Kind::Gauge, "bytes", "Live bytes in the memtables.");
        text.samples(name, "", "keyspace", values);
        text.counter("batches", "", "Batches written.", self.batches);
        for (name, help, value) in [
            (
                "transactions",
                "Transactions committed that wrote something.",
                self.transactions,
            ),
            (
                "transaction_conflicts",
                "Transactions that met a conflict.",
                self.transaction_conflicts,
            ),
            (
                "transaction_repeats",
                "Searches for changes by commits.",
                self.transaction_repeats,
            ),
            (
                "transaction_comparisons",
                "Values that commits compared.",
                self.transaction_comparisons,
            ),
        ] {
            text.counter(name, "", help, value);
        }
        text.counter(
            "watched_seconds",
            "seconds",
            "Time for which writes noted what they change.",
            self.watched_ns as f64 / 1e9,
        );
    }

    fn write_caches(&self, text: &mut Text) {
        for (name, help, counts) in [
            (
                "cache_hits",
                "Lookups that the page cache answered.",
                &self.cache_hits,
            ),
            (
                "cache_misses",
                "Lookups that the page cache did not answer.",
                &self.cache_misses,
            ),
        ] {
            text.family(name, Kind::Counter, "", help);
            let values = [
                ("block", counts.blocks),
                ("index", counts.indexes),
                ("filter", counts.filters),
                ("node", counts.objects),
            ];
            text.samples(name, "_total", "kind", values);
        }
        text.counter(
            "record_cache_hits",
            "",
            "Gets that the record cache answered.",
            self.record_hits,
        );
        text.counter(
            "location_hits",
            "",
            "Gets of separated values that needed no tree.",
            self.location_hits,
        );
        text.gauge(
            "location_bytes",
            "bytes",
            "Memory of the map of separated values.",
            self.location_bytes,
        );
        text.gauge(
            "cached_records",
            "",
            "Records in the record cache.",
            self.cached_records,
        );
    }

    fn write_device(&self, text: &mut Text) {
        let read = &self.device_reads;
        let name = "device_reads";
        text.family(
            name,
            Kind::Counter,
            "",
            "Reads of the data file, by purpose.",
        );
        let values = [
            ("get", read.get_reads),
            ("range", read.scan_reads),
            ("merge", read.merge_reads),
            ("metadata", read.meta_reads),
            ("verify", read.verify_reads),
        ];
        text.samples(name, "_total", "purpose", values);
        let name = "device_read_bytes";
        text.family(
            name,
            Kind::Counter,
            "bytes",
            "Bytes read from the data file, by purpose.",
        );
        let values = [
            ("get", read.get_bytes),
            ("range", read.scan_bytes),
            ("merge", read.merge_bytes),
            ("metadata", read.meta_bytes),
            ("verify", read.verify_bytes),
        ];
        text.samples(name, "_total", "purpose", values);
        let written = &self.device_written;
        let name = "data_written_bytes";
        text.family(
            name,
            Kind::Counter,
            "bytes",
            "Bytes written to the data file, by what they are.",
        );
        let values = [
            ("leaf", written.leaves),
            ("segment", written.segments),
            ("node", written.nodes),
            ("catalog", written.catalog),
            ("superblock", written.superblocks),
            ("values", written.values),
        ];
        text.samples(name, "_total", "kind", values);
        let help = "Bytes written to the log's files.";
        text.counter("log_written_bytes", "bytes", help, self.log_bytes_written);
        text.counter("log_syncs", "", "Syncs of the log.", self.log_syncs);
        let help = "Bytes of log that a recovery would read.";
        text.gauge("log_kept_bytes", "bytes", help, self.log_kept_bytes);
        let help = "Bytes of log that the next open would replay if the process died now.";
        text.gauge("replay_bytes", "bytes", help, self.replay_bytes);
        let help = "The most that the recovery target lets the next open replay; 0 without one.";
        text.gauge("replay_max_bytes", "bytes", help, self.replay_bytes_max);
        let help = "Bytes that the log's files occupy.";
        text.gauge("log_disk_bytes", "bytes", help, self.log_disk_bytes);
        let help = "Bytes of live pages in the data file.";
        text.gauge("data_live_bytes", "bytes", help, self.data_live_bytes);
        let help = "Free bytes within the data file.";
        text.gauge("data_free_bytes", "bytes", help, self.data_free_bytes);
        let help = "Bytes that the data file occupies on the disk.";
        text.gauge("data_disk_bytes", "bytes", help, self.data_allocated_bytes);
        let help = "Bytes of the data file that are reserved for deletes on a full disk.";
        text.gauge("data_reserve_bytes", "bytes", help, self.data_reserve_bytes);
        let help = "Bytes of live pages for each key and value byte that they hold.";
        let space = self.space_amplification;
        text.gauge("space_amplification_ratio", "ratio", help, space);
    }

    fn write_background(&self, text: &mut Text) {
        text.counter(
            "ingested_records",
            "",
            "Records of finished ingests.",
            self.ingested_records,
        );
        text.counter(
            "checkpoints",
            "",
            "Checkpoints committed.",
            self.checkpoints,
        );
        let help = "Checkpoints that failed and are tried again.";
        text.counter("checkpoint_failures", "", help, self.checkpoints_failed);
        let help = "Bytes that sealed memtables still have to merge.";
        let debt = self.checkpoint_debt_bytes;
        text.gauge("checkpoint_debt_bytes", "bytes", help, debt);
        let help = "Stretches of trees that were compacted for ranges.";
        text.counter("compactions", "", help, self.compactions);
        let help = "Trees compacted because enough of their records had expired.";
        text.counter("expiry_compactions", "", help, self.expiry_compactions);
        let help = "1 while a tree is compacted for ranges, else 0.";
        text.gauge("compacting", "", help, u64::from(self.is_compacting));
        let help = "Log records that the open replayed.";
        text.counter("replayed_records", "", help, self.replayed_records);
        let help = "Bytes of pages that backups read from the data file.";
        text.counter("backup_bytes", "bytes", help, self.backup_bytes);
        let help = "Snapshots and iterators that live.";
        text.gauge("views", "", help, self.views);
        let help = "Memtables that were written to pages for snapshots and iterators.";
        text.counter("view_folds", "", help, self.folds);
        let help = "Writes that were refused because merges or the log's disk lagged behind.";
        text.counter("writes_refused", "", help, self.writes_refused);
    }

    fn write_latencies(&self, text: &mut Text) {
        for (name, help, latency) in [
            (
                "write_duration_seconds",
                "Time of puts, deletes and batches; one in 64 is timed.",
                &self.put_latency,
            ),
            (
                "get_duration_seconds",
                "Time of gets; one in 64 is timed.",
                &self.get_latency,
            ),
            (
                "sync_wait_seconds",
                "Time that writes with Durability::Sync waited for their sync.",
                &self.sync_latency,
            ),
        ] {
            text.family(name, Kind::Histogram, "seconds", help);
            text.histogram(name, "", latency);
        }
        let name = "write_wait_seconds";
        let help = "Time that the store held writes back, by cause; every wait is timed.";
        text.family(name, Kind::Histogram, "seconds", help);
        for (cause, latency) in [
            ("pace", &self.waits.pace),
            ("turn", &self.waits.turn),
            ("merge", &self.waits.merge),
            ("log", &self.waits.log),
            ("seal", &self.waits.seal),
        ] {
            text.histogram(name, &format!("cause=\"{cause}\""), latency);
        }
    }

    fn write_memory(&self, text: &mut Text) {
        let memory = &self.memory;
        let help = "The memory budget.";
        text.gauge("memory_limit_bytes", "bytes", help, memory.limit_bytes);
        let name = "memory_bytes";
        text.family(name, Kind::Gauge, "bytes", "Memory in use, by purpose.");
        let values = [
            ("memtable", memory.memtable_bytes),
            ("block", memory.block_bytes),
            ("metadata", memory.metadata_bytes),
            ("record", memory.record_bytes),
            ("merge", memory.merge_bytes),
            ("log", memory.log_bytes),
            ("keyspaces", memory.keyspace_bytes),
            ("transactions", memory.transaction_bytes),
        ];
        text.samples(name, "", "purpose", values);
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// The text so far. Names are given without the prefix `terrapin_`.
#[derive(Default)]
struct Text(String);

impl Text {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // A write to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn family(&mut self, name: &str, kind: Kind, unit: &str, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# TYPE terrapin_{name} {kind}"));
        if !unit.is_empty() {
            self.line(format_args!("# UNIT terrapin_{name} {unit}"));
        }
        self.line(format_args!("# HELP terrapin_{name} {help}"));
    }

    fn counter(&mut self, name: &str, unit: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Counter, unit, help);
        self.line(format_args!("terrapin_{name}_total {value}"));
    }

    fn gauge(&mut self, name: &str, unit: &str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, unit, help);
        self.line(format_args!("terrapin_{name} {value}"));
    }

    fn samples<'a>(
        &mut self,
        name: &str,
        suffix: &str,
        label: &str,
        values: impl IntoIterator<Item = (&'a str, u64)>,
    ) {
        for (of, value) in values {
            let of = Escaped(of);
            self.line(format_args!(
                "terrapin_{name}{suffix}{{{label}=\"{of}\"}} {value}"
            ));
        }
    }

    fn histogram(&mut self, name: &str, label: &str, latency: &Latency) {
        let (comma, labels) = match label {
            "" => ("", String::new()),
            _ => (",", format!("{{{label}}}")),
        };
        let mut buckets = latency.buckets.iter().peekable();
        let mut count = 0;
        for power in BOUNDS {
            let bound_ns = (1_u64 << power) - 1;
            while let Some(bucket) = buckets.next_if(|b| b.upper_ns <= bound_ns) {
                count += bucket.count;
            }
            let bound = bound_ns as f64 / 1e9;
            self.line(format_args!(
                "terrapin_{name}_bucket{{{label}{comma}le=\"{bound}\"}} {count}"
            ));
        }
        let count = latency.count;
        self.line(format_args!(
            "terrapin_{name}_bucket{{{label}{comma}le=\"+Inf\"}} {count}"
        ));
        let total = latency.total_ns as f64 / 1e9;
        self.line(format_args!("terrapin_{name}_count{labels} {count}"));
        self.line(format_args!("terrapin_{name}_sum{labels} {total}"));
    }
}

/// The value of a label.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{Histogram, KeyspaceMetrics};
    use super::*;

    fn sample() -> Metrics {
        let histogram = Histogram::default();
        for ns in [100, 300, 1_000_000, 90_000_000_000] {
            histogram.record(ns);
        }
        let mut metrics = Metrics {
            get_latency: histogram.latency(),
            ..Metrics::default()
        };
        metrics.waits.pace = histogram.latency();
        metrics.keyspaces = vec![KeyspaceMetrics {
            name: "a \"b\"\\".into(),
            puts: 7,
            ..KeyspaceMetrics::default()
        }];
        metrics
    }

    #[test]
    fn every_sample_belongs_to_the_family_that_was_declared_last() {
        let text = sample().openmetrics();
        let mut seen = BTreeSet::new();
        let (mut family, mut kind) = ("", "");
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                (family, kind) = rest.split_once(' ').unwrap();
                assert!(seen.insert(family), "{family} is declared twice");
                assert!(family.starts_with("terrapin_"), "{family}");
                continue;
            }
            if let Some(rest) = line.strip_prefix("# UNIT ") {
                let (of, unit) = rest.split_once(' ').unwrap();
                assert!(of == family && of.ends_with(&format!("_{unit}")), "{line}");
                continue;
            }
            if line.starts_with('#') {
                continue;
            }
            let name = line.split(['{', ' ']).next().unwrap();
            let suffix = name
                .strip_prefix(family)
                .unwrap_or_else(|| panic!("{line}"));
            let allowed: &[&str] = match kind {
                "counter" => &["_total"],
                "gauge" => &[""],
                _ => &["_bucket", "_count", "_sum"],
            };
            assert!(allowed.contains(&suffix), "{line}");
        }
        assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1);
    }

    #[test]
    fn labels_are_escaped_and_buckets_add_up() {
        let text = sample().openmetrics();
        let has = |line: &str| assert!(text.contains(line), "{line} is not in\n{text}");
        has("terrapin_puts_total{keyspace=\"a \\\"b\\\"\\\\\"} 7\n");
        has("terrapin_get_duration_seconds_bucket{le=\"0.000000255\"} 1\n");
        has("terrapin_get_duration_seconds_bucket{le=\"0.000000511\"} 2\n");
        has("terrapin_get_duration_seconds_bucket{le=\"68.719476735\"} 3\n");
        has("terrapin_get_duration_seconds_bucket{le=\"+Inf\"} 4\n");
        has("terrapin_get_duration_seconds_count 4\n");
        has("terrapin_write_wait_seconds_bucket{cause=\"pace\",le=\"0.000000255\"} 1\n");
        has("terrapin_write_wait_seconds_count{cause=\"pace\"} 4\n");
    }
}
