//! The ledger: a committed table of the units tried. A line covers consecutive units of one layer
//! at one commit.

use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

const HEAD: &str = "layer\tcommit\tfirst\tlast\tcounted\tfinds\tseconds\n";

/// Consecutive units of a layer, tried at one commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The layer's name.
    pub layer: String,
    /// The engine's commit, with a `+` if the tree had changes beyond it.
    pub commit: String,
    /// The first unit.
    pub first: u64,
    /// The last.
    pub last: u64,
    /// Their counts.
    pub counted: u64,
    /// The number of units with a find.
    pub finds: u64,
    /// Seconds of wall time.
    pub seconds: f64,
}

/// The ledger, as its file has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ledger {
    /// In the order of the trials.
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// Reads a ledger; a missing file is an empty one.
    pub fn read(path: &Path) -> io::Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|line| {
                let message = format!("{} line {line} is no ledger entry", path.display());
                io::Error::new(io::ErrorKind::InvalidData, message)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Ledger::default()),
            Err(error) => Err(error),
        }
    }

    /// Replaces the whole file.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, self.text())?;
        fs::rename(&temporary, path)
    }

    /// The first unit of a layer not tried at this commit; without a commit, at any.
    #[must_use]
    pub fn next(&self, layer: &str, commit: Option<&str>) -> u64 {
        let tried = self.of(layer, commit).map(|e| e.last + 1);
        tried.max().unwrap_or(0)
    }

    /// A layer's count, at this commit or at any.
    #[must_use]
    pub fn counted(&self, layer: &str, commit: Option<&str>) -> u64 {
        self.of(layer, commit).map(|e| e.counted).sum()
    }

    /// The number of a layer's units with a find, at this commit or at any.
    #[must_use]
    pub fn finds(&self, layer: &str, commit: Option<&str>) -> u64 {
        self.of(layer, commit).map(|e| e.finds).sum()
    }

    /// The first unit of a layer in a line with finds and in no later line without; none if there
    /// is none.
    #[must_use]
    pub fn unsettled(&self, layer: &str, commit: Option<&str>) -> Option<u64> {
        let entries: Vec<&Entry> = self.of(layer, commit).collect();
        entries.iter().enumerate().find_map(|(number, found)| {
            let later = || entries[number + 1..].iter().filter(|e| e.finds == 0);
            let mut unit = found.first;
            while let Some(clean) = later().find(|e| e.first <= unit && unit <= e.last) {
                unit = clean.last + 1;
            }
            (found.finds > 0 && unit <= found.last).then_some(unit)
        })
    }

    fn of(&self, layer: &str, commit: Option<&str>) -> impl Iterator<Item = &Entry> {
        self.entries
            .iter()
            .filter(move |e| e.layer == layer && commit.is_none_or(|c| e.commit == c))
    }

    /// Enters a trial; it extends the layer's last line if it continues it.
    pub fn enter(&mut self, entry: Entry) {
        let last = self
            .entries
            .iter_mut()
            .rev()
            .find(|e| e.layer == entry.layer);
        match last {
            Some(last) if last.commit == entry.commit && last.last + 1 == entry.first => {
                last.last = entry.last;
                last.counted += entry.counted;
                last.finds += entry.finds;
                last.seconds += entry.seconds;
            }
            _ => self.entries.push(entry),
        }
    }

    fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        for e in &self.entries {
            let _ = writeln!(
                text,
                "{}\t{}\t{}\t{}\t{}\t{}\t{:.1}",
                e.layer, e.commit, e.first, e.last, e.counted, e.finds, e.seconds
            );
        }
        text
    }

    /// The error is the number of the first bad line.
    fn parse(text: &str) -> Result<Self, usize> {
        let mut entries = Vec::new();
        for (number, line) in text.lines().enumerate().skip(1) {
            let entry = parse_line(line).ok_or(number + 1)?;
            entries.push(entry);
        }
        Ok(Ledger { entries })
    }
}

fn parse_line(line: &str) -> Option<Entry> {
    let mut fields = line.split('\t');
    let mut next = || fields.next();
    Some(Entry {
        layer: next()?.to_owned(),
        commit: next()?.to_owned(),
        first: next()?.parse().ok()?,
        last: next()?.parse().ok()?,
        counted: next()?.parse().ok()?,
        finds: next()?.parse().ok()?,
        seconds: next()?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(layer: &str, commit: &str, first: u64, last: u64) -> Entry {
        Entry {
            layer: layer.to_owned(),
            commit: commit.to_owned(),
            first,
            last,
            counted: 10,
            finds: 0,
            seconds: 1.5,
        }
    }

    #[test]
    fn consecutive_units_extend_a_line_and_others_begin_one() {
        let mut ledger = Ledger::default();
        ledger.enter(entry("a", "c1", 0, 4));
        ledger.enter(entry("b", "c1", 0, 1));
        ledger.enter(entry("a", "c1", 5, 9));
        ledger.enter(entry("a", "c2", 10, 11));
        assert_eq!(ledger.entries.len(), 3);
        assert_eq!(ledger.entries[0].last, 9);
        assert_eq!(ledger.counted("a", None), 30);
        assert_eq!(ledger.counted("a", Some("c2")), 10);
        assert_eq!(ledger.next("a", Some("c1")), 10);
        assert_eq!(ledger.next("c", None), 0);
    }

    #[test]
    fn a_find_stays_open_until_its_line_was_repeated_without_one() {
        let with = |finds, commit, first, last| Entry {
            finds,
            ..entry("a", commit, first, last)
        };
        let mut ledger = Ledger::default();
        ledger.enter(with(0, "c1", 0, 4));
        assert_eq!(ledger.unsettled("a", None), None);
        ledger.enter(with(1, "c2", 5, 9));
        assert_eq!(ledger.finds("a", None), 1);
        assert_eq!(ledger.unsettled("a", None), Some(5));
        assert_eq!(ledger.unsettled("a", Some("c1")), None);
        ledger.enter(with(0, "c3", 3, 7));
        assert_eq!(ledger.unsettled("a", None), Some(8));
        ledger.enter(with(2, "c4", 8, 9));
        assert_eq!(ledger.unsettled("a", None), Some(8));
        ledger.enter(with(0, "c5", 8, 9));
        assert_eq!(ledger.unsettled("a", None), None);
        assert_eq!(ledger.unsettled("b", None), None);
    }

    #[test]
    fn a_ledger_is_read_as_it_was_written_and_a_bad_line_is_named() {
        let mut ledger = Ledger::default();
        ledger.enter(entry("a", "c1+", 3, 4));
        assert_eq!(Ledger::parse(&ledger.text()), Ok(ledger.clone()));
        let broken = ledger.text() + "a\tc1\tx\n";
        assert_eq!(Ledger::parse(&broken), Err(3));
    }
}
