//! The recorded counts, and the report when counts differ.

use std::fmt;

/// How far a count may be from the recorded one, either way. An improvement is recorded too, so
/// that it stays.
const TOLERANCE_PERCENT: f64 = 3.0;
/// The tolerance when the baseline has another compiler, C library or valgrind.
const TOLERANCE_OTHER_PERCENT: f64 = 15.0;
const RECORD: &str = "cargo run --release -p counts -- --record";
const HEAD: &str = "path\tinstructions";

/// Counts, with the tools that made them.
#[derive(Clone, Debug, PartialEq)]
pub struct Baseline {
    /// Names and values.
    pub made_with: Vec<(String, String)>,
    /// Instructions of one operation, by path.
    pub counts: Vec<(String, f64)>,
}

impl Baseline {
    /// The baseline as its file has it.
    pub fn text(&self) -> String {
        let mut text = format!("# Instructions of one operation; written by `{RECORD}`.\n");
        for (name, value) in &self.made_with {
            text += &format!("# {name}: {value}\n");
        }
        text += HEAD;
        text.push('\n');
        for (path, count) in &self.counts {
            text += &format!("{path}\t{count:.1}\n");
        }
        text
    }

    /// Reads what [`Baseline::text`] wrote; an error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut baseline = Baseline {
            made_with: Vec::new(),
            counts: Vec::new(),
        };
        for (number, line) in text.lines().enumerate() {
            if let Some(comment) = line.strip_prefix("# ") {
                if let Some((name, value)) = comment.split_once(": ") {
                    baseline.made_with.push((name.to_owned(), value.to_owned()));
                }
            } else if line != HEAD {
                let count = line
                    .split_once('\t')
                    .and_then(|(path, count)| Some((path.to_owned(), count.parse().ok()?)))
                    .filter(|(_, count): &(String, f64)| count.is_finite() && *count > 0.0);
                let wrong = || format!("line {} is no count", number + 1);
                baseline.counts.push(count.ok_or_else(wrong)?);
            }
        }
        Ok(baseline)
    }

    fn count(&self, path: &str) -> Option<f64> {
        let found = self.counts.iter().find(|(name, _)| name == path);
        found.map(|&(_, count)| count)
    }
}

/// The result of a comparison; its `Display` is a table.
#[derive(Debug)]
pub struct Verdict {
    /// Path, current count, recorded count; one of the counts may be missing.
    rows: Vec<(String, Option<f64>, Option<f64>)>,
    /// Tools that differ: name, then, now.
    others: Vec<(String, String, String)>,
}

impl Verdict {
    /// Compares counts with a baseline.
    pub fn of(baseline: &Baseline, now: &Baseline) -> Self {
        let known = baseline.counts.iter().map(|(path, _)| path);
        let new = now.counts.iter().map(|(path, _)| path);
        let rows = known
            .chain(new.filter(|path| baseline.count(path).is_none()))
            .map(|path| (path.clone(), now.count(path), baseline.count(path)))
            .collect();
        let value = |of: &Baseline, name: &str| {
            let found = of.made_with.iter().find(|(n, _)| n == name);
            found.map_or_else(|| "unknown".to_owned(), |(_, value)| value.clone())
        };
        let others = now
            .made_with
            .iter()
            .map(|(name, value_now)| (name.clone(), value(baseline, name), value_now.clone()))
            .filter(|(_, then, now)| then != now)
            .collect();
        Verdict { rows, others }
    }

    fn tolerance_percent(&self) -> f64 {
        if self.others.is_empty() {
            TOLERANCE_PERCENT
        } else {
            TOLERANCE_OTHER_PERCENT
        }
    }

    fn differs(&self, (_, now, then): &(String, Option<f64>, Option<f64>)) -> bool {
        match (now, then) {
            (Some(now), Some(then)) => percent(*now, *then).abs() > self.tolerance_percent(),
            _ => true,
        }
    }

    /// Whether every count is within the tolerance.
    pub fn holds(&self) -> bool {
        !self.rows.iter().any(|row| self.differs(row))
    }
}

fn percent(now: f64, then: f64) -> f64 {
    (now / then - 1.0) * 100.0
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:18} {:>14} {:>14} {:>12}",
            "path", "instructions", "baseline", "difference"
        )?;
        for row in &self.rows {
            let (path, now, then) = row;
            let show = |count: &Option<f64>| count.map_or("-".into(), |c| format!("{c:.1}"));
            let difference = match (now, then) {
                (Some(now), Some(then)) => format!("{:+.2} %", percent(*now, *then)),
                (_, None) => "new".into(),
                (None, _) => "gone".into(),
            };
            let mark = if self.differs(row) { "  <--" } else { "" };
            let (now, then) = (show(now), show(then));
            writeln!(f, "{path:18} {now:>14} {then:>14} {difference:>12}{mark}")?;
        }
        for (name, then, now) in &self.others {
            writeln!(
                f,
                "The baseline was made with {name} {then}, and this is {now}."
            )?;
        }
        let tolerance = self.tolerance_percent();
        if !self.others.is_empty() {
            writeln!(
                f,
                "So {tolerance} % is let pass instead of {TOLERANCE_PERCENT} %. If the change is there to stay, record anew, from a commit \
                 that changes nothing else: {RECORD}"
            )?;
        }
        if !self.holds() {
            writeln!(
                f,
                "Counts are off by more than {tolerance} %. More instructions: `counts --profile PATH` shows where. What is meant, \
                 better or worse, is recorded and committed with its reason: {RECORD}"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn baseline(rustc: &str, counts: &[(&str, f64)]) -> Baseline {
        Baseline {
            made_with: vec![("rustc".into(), rustc.into())],
            counts: counts.iter().map(|&(p, c)| (p.into(), c)).collect(),
        }
    }

    #[test]
    fn a_baseline_is_read_as_it_was_written() {
        let written = baseline("1.95.0 (a: b)", &[("put", 1234.5), ("get hit: x", 7.0)]);
        assert_eq!(Baseline::parse(&written.text()), Ok(written));
        assert!(Baseline::parse("path\tinstructions\nput\tmany\n").is_err());
        assert!(Baseline::parse("put\t0\n").is_err());
    }

    #[test]
    fn a_count_beyond_the_tolerance_fails_either_way() {
        let then = baseline("1", &[("put", 1000.0)]);
        let holds = |rustc, count| Verdict::of(&then, &baseline(rustc, &[("put", count)])).holds();
        assert!(holds("1", 1029.0) && holds("1", 971.0));
        assert!(!holds("1", 1031.0) && !holds("1", 969.0));
        // Another compiler gets the larger tolerance.
        assert!(holds("2", 1140.0) && !holds("2", 1160.0));
    }

    #[test]
    fn a_path_that_is_new_or_gone_fails() {
        let (one, two) = (
            baseline("1", &[("put", 1.0)]),
            baseline("1", &[("put", 1.0), ("get", 1.0)]),
        );
        assert!(!Verdict::of(&one, &two).holds());
        assert!(!Verdict::of(&two, &one).holds());
        assert!(Verdict::of(&two, &two).holds());
    }

    #[test]
    fn another_compiler_is_named() {
        let verdict = Verdict::of(&baseline("1.95", &[]), &baseline("1.96", &[])).to_string();
        assert!(
            verdict.contains("rustc 1.95, and this is 1.96"),
            "{verdict}"
        );
    }
}
