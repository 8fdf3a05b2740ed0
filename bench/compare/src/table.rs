//! The report as Markdown: machine, engines, and for each cell tables of rates and their costs.

use std::fmt::Write;

use crate::engines::{self, Engine};
use crate::host::Machine;
use crate::summary::{Contender, Figure, Row, Summary, distinct};

const TERRAPIN: &str = "terrapin";

/// All tables of a size.
pub fn markdown(machines: &[(Machine, String)], summaries: &[Summary]) -> String {
    let mut text = String::new();
    let size = summaries.first().map_or("", |s| s.size.name());
    // Writing to a string cannot fail.
    let _ = writeln!(text, "# Comparison, {size} size\n");
    for (machine, allocator) in machines {
        let _ = writeln!(
            text,
            "Machine: {} × {}, {} GiB of memory, Linux {}, {}; `malloc` is {allocator}.\n",
            machine.processors,
            machine.processor,
            machine.memory_bytes.div_ceil(1 << 30),
            machine.kernel,
            machine.file_system,
        );
    }
    text.push_str(&engines_table(summaries));
    for summary in summaries {
        text.push_str(&cell(summary));
    }
    text
}

fn engines_table(summaries: &[Summary]) -> String {
    let mut text = String::from("| engine | version | log | how |\n| --- | --- | --- | --- |\n");
    for engine in engines::all() {
        let contenders = summaries.iter().flat_map(|s| &s.contenders);
        let ours = contenders.filter(|contender| contender.engine == engine.name);
        let versions = distinct(ours.flat_map(|contender| contender.versions.iter().cloned()));
        if !versions.is_empty() {
            let _ = writeln!(
                text,
                "| {}{} | {} | {} | {} |",
                engine.name,
                mark(engine),
                versions.join("; "),
                if engine.logged { "yes" } else { "no" },
                engine.how
            );
        }
    }
    text.push_str("\n\\* runs without a log.\n\n");
    text
}

fn mark(engine: &Engine) -> &'static str {
    if engine.logged { "" } else { "\\*" }
}

fn name(contender: &Contender) -> String {
    let mark = if contender.logged { "" } else { "\\*" };
    format!("{}{mark}", contender.engine)
}

fn cell(summary: &Summary) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "## {}\n\n`{}`: {} records of {} MiB, memory {} MiB, {} of each engine, {} to {}.\n\n![rates]({}.svg)\n",
        summary.title,
        summary.cell,
        summary.records,
        summary.data_bytes >> 20,
        summary.memory_bytes >> 20,
        runs(summary),
        day(summary.began),
        day(summary.ended),
        summary.cell,
    );
    let limits = summary.contenders.iter().filter_map(|contender| {
        let mib = contender.memory_limit_bytes? >> 20;
        Some(format!("{} {mib} MiB", contender.engine))
    });
    let limits: Vec<String> = limits.collect();
    if !limits.is_empty() {
        let all = limits.join(", ");
        let _ = writeln!(
            text,
            "Limits of the processes, page cache included: {all}.\n"
        );
    }
    for note in &summary.notes {
        let _ = writeln!(text, "Not as planned: {note}.\n");
    }
    text.push_str("Thousands of operations a second, the settling included: median ± half the spread, which a single run has none of. The best is bold.\n\n");
    text.push_str(&rates(summary));
    text.push_str("\nWhat they cost, medians.\n\n");
    for phase in &summary.phases {
        text.push_str(&costs(summary, phase));
    }
    for contender in &summary.contenders {
        if let Some(why) = &contender.unsupported {
            let _ = writeln!(text, "{}: not supported: {why}.\n", contender.engine);
        }
        for failure in &contender.failures {
            let _ = writeln!(text, "{} failed: {failure}.\n", contender.engine);
        }
    }
    text
}

/// The number of runs: "3 runs", "1 to 3 runs".
fn runs(summary: &Summary) -> String {
    let repeats = || summary.contenders.iter().map(|c| c.repeats);
    let (fewest, most) = (repeats().min().unwrap_or(0), repeats().max().unwrap_or(0));
    match (fewest, most) {
        (1, 1) => "1 run".to_owned(),
        _ if fewest == most => format!("{most} runs"),
        _ => format!("{fewest} to {most} runs"),
    }
}

/// Rates of a cell, and Terrapin's as multiples of the others'.
fn rates(summary: &Summary) -> String {
    rates_by_engine(summary) + &against(summary, &GROUPS)
}

/// Terrapin's rates as multiples of the best engine with a log.
pub fn against_the_logged(summary: &Summary) -> String {
    against(summary, &GROUPS[1..2])
}

/// Rates of a cell.
pub fn rates_by_engine(summary: &Summary) -> String {
    let mut text = format!("| engine | {} |\n", summary.phases.join(" | "));
    text.push_str(&"| --- ".repeat(summary.phases.len() + 1));
    text.push_str("|\n");
    let best: Vec<f64> = summary
        .phases
        .iter()
        .map(|phase| {
            let rates = summary.contenders.iter().flat_map(|c| c.rows.get(phase));
            rates.map(|row| row.rate.median).fold(0.0, f64::max)
        })
        .collect();
    for contender in &summary.contenders {
        let _ = write!(text, "| {} ", name(contender));
        for (phase, best) in summary.phases.iter().zip(&best) {
            let Some(row) = contender.rows.get(phase) else {
                text.push_str("| – ");
                continue;
            };
            let bold = if row.rate.median >= *best { "**" } else { "" };
            let _ = write!(text, "| {bold}{}{bold} ", short(row.rate.median / 1000.0));
            if row.runs > 1 {
                let _ = write!(text, "±{:.0} % ", row.rate.spread() * 100.0);
            }
        }
        text.push_str("|\n");
    }
    text
}

/// Whether a peer belongs to a group.
type Takes = fn(&Contender) -> bool;

/// Groups of peers.
const GROUPS: [(&str, Takes); 3] = [
    ("÷ rocksdb", |c| is_of(c, "rocksdb")),
    ("÷ the best with a log", |c| c.logged),
    ("÷ the best", |_| true),
];

/// Whether a contender is an engine or one of its variants.
fn is_of(contender: &Contender, engine: &str) -> bool {
    (contender.engine.strip_prefix(engine))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Terrapin's rates as multiples of the others'. Variants of Terrapin are no others.
fn against(summary: &Summary, groups: &[(&str, Takes)]) -> String {
    let Some(terrapin) = summary.contenders.iter().find(|c| c.engine == TERRAPIN) else {
        return String::new();
    };
    let mut text = String::new();
    for (title, takes) in groups {
        let peers = summary.contenders.iter().filter(|c| !is_of(c, TERRAPIN));
        let peers: Vec<_> = peers.filter(|c| takes(c)).collect();
        let _ = write!(text, "| {TERRAPIN} {title} ");
        for phase in &summary.phases {
            let rates = peers.iter().flat_map(|c| c.rows.get(phase));
            let best = rates.map(|row| row.rate.median).fold(0.0, f64::max);
            let mine = terrapin.rows.get(phase).map_or(0.0, |r| r.rate.median);
            let multiple = if best > 0.0 { mine / best } else { 0.0 };
            let _ = write!(text, "| {} ", short(multiple));
        }
        text.push_str("|\n");
    }
    text
}

fn costs(summary: &Summary, phase: &str) -> String {
    let mut text = format!(
        "| {phase} | p50 µs | p99 | p99.9 | p99.99 | max | written/user | log/user | data/user | whole disk | read B/op | CPU µs/op | space/data | RSS MiB | settling s |\n"
    );
    text.push_str(&"| --- ".repeat(15));
    text.push_str("|\n");
    for contender in &summary.contenders {
        if let Some(row) = contender.rows.get(phase) {
            let _ = writeln!(text, "| {} {}|", name(contender), figures(row));
        }
    }
    text.push('\n');
    text
}

fn figures(row: &Row) -> String {
    let mib = Figure {
        median: row.rss_bytes.median / f64::from(1 << 20),
        ..Figure::default()
    };
    [
        row.p50_us,
        row.p99_us,
        row.p999_us,
        row.p9999_us,
        row.max_us,
        row.write_amplification,
        row.log_amplification,
        row.data_amplification,
        row.disk_amplification,
        row.read_bytes,
        row.cpu_us,
        row.space,
        mib,
        row.settle_seconds,
    ]
    .iter()
    .map(|figure| format!("| {} ", short(figure.median)))
    .collect()
}

/// Three digits, or all before the point.
fn short(value: f64) -> String {
    if value == 0.0 {
        "–".into()
    } else if value >= 100.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// The day of a time, in the calendar (Hinnant's `civil_from_days`).
fn day(seconds: u64) -> String {
    let days = (seconds / 86_400) as i64 + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year + era * 400 + i64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(1_767_225_599), "2025-12-31");
    }

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(short(0.0), "–");
        assert_eq!(short(1.234), "1.23");
        assert_eq!(short(12.34), "12.3");
        assert_eq!(short(1234.5), "1234");
    }
}
