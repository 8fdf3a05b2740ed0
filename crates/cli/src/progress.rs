//! A command's progress, in one redrawn line of stderr: on a terminal only, and never wider. Other
//! output to the terminal clears the line first (`output.rs`).

use std::io::IsTerminal;

use rustix::termios::tcgetwinsize;
use terrapin_base::Env;
use terrapin_base::sync::Mutex;

use crate::bytes::{counted, human, thousands};
use crate::output;

/// Least nanoseconds between two drawings.
const REDRAW_NS: u64 = 200_000_000;
/// Columns of a terminal that does not report its width.
const COLUMNS_DEFAULT: u16 = 80;
/// Most columns of the bar, and the fewest that are useful.
const BAR_COLUMNS: std::ops::RangeInclusive<usize> = 5..=30;

/// What a bar counts.
#[derive(Clone, Copy)]
enum Unit {
    Bytes,
    /// Records or operations.
    Records,
}

/// The progress line, cleared on drop.
pub struct Bar(Option<Shown>);

struct Shown {
    env: Env,
    state: Mutex<State>,
}

struct State {
    name: &'static str,
    unit: Unit,
    done: u64,
    total: Option<u64>,
    /// Records that the bytes held.
    records: Option<u64>,
    begun_ns: u64,
    drawn_ns: u64,
}

/// Counts bytes of an input, whose size may be unknown.
#[must_use]
pub fn of_bytes(total: Option<u64>, name: &'static str) -> Bar {
    Bar::new(name, Unit::Bytes, total)
}

/// Counts operations or records.
#[must_use]
pub fn of_records(total: Option<u64>, name: &'static str) -> Bar {
    Bar::new(name, Unit::Records, total)
}

impl Bar {
    fn new(name: &'static str, unit: Unit, total: Option<u64>) -> Self {
        let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if is_dumb || !std::io::stderr().is_terminal() {
            return Bar(None);
        }
        let env = Env::threads();
        let begun_ns = env.now_ns();
        let state = State {
            name,
            unit,
            done: 0,
            total,
            records: None,
            begun_ns,
            drawn_ns: begun_ns,
        };
        Bar(Some(Shown {
            env,
            state: Mutex::new(state),
        }))
    }

    /// Whether stderr is no terminal, so nothing is shown.
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.0.is_none()
    }

    /// Sets the finished count. A smaller number than before starts a new count and a new rate.
    pub fn set(&self, done: u64) {
        self.change(|state| state.done = done);
    }

    /// Sets the total count.
    pub fn set_total(&self, total: u64) {
        self.change(|state| state.total = Some(total));
    }

    /// Sets how many records the bytes held.
    pub fn set_records(&self, records: u64) {
        self.change(|state| state.records = Some(records));
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let Some(shown) = &self.0 else { return };
        let now = shown.env.now_ns();
        let mut state = shown.state.lock();
        let before = state.done;
        change(&mut state);
        if state.done < before {
            state.begun_ns = now;
        }
        if now.saturating_sub(state.drawn_ns) >= REDRAW_NS {
            state.drawn_ns = now;
            let columns = tcgetwinsize(std::io::stderr()).map_or(0, |size| size.ws_col);
            let columns = if columns == 0 {
                COLUMNS_DEFAULT
            } else {
                columns
            };
            let seconds = now.saturating_sub(state.begun_ns) as f64 / 1e9;
            output::draw(&state.line(seconds, columns.into()));
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.0.is_some() {
            output::clear();
        }
    }
}

impl State {
    /// The line, shorter than `columns`: the cursor needs the last column. Parts that do not fit
    /// are left out, the least important first.
    fn line(&self, seconds: f64, columns: usize) -> String {
        let shown = |number| match self.unit {
            Unit::Bytes => human(number),
            Unit::Records => thousands(number),
        };
        let per_second = self.done as f64 / seconds.max(1e-9);
        let (done, time) = match self.total {
            Some(total) if self.done > 0 => {
                let left = total.saturating_sub(self.done) as f64 / per_second;
                let done = format!("{} of {}", shown(self.done), shown(total));
                (done, format!("{} left", duration(left)))
            }
            _ => (shown(self.done), duration(seconds)),
        };
        let rate = format!("{} a second", shown(per_second as u64));
        let records = self.records.map(|records| counted(records, "record"));
        let mut text = done;
        let width = columns.saturating_sub(self.name.len() + 2);
        for part in [Some(time), Some(rate), records].into_iter().flatten() {
            if text.len() + part.len() + 2 > width {
                break;
            }
            text = format!("{text}, {part}");
        }
        let room = width.saturating_sub(text.len() + 3);
        let bar = match self.total {
            Some(total) if room >= *BAR_COLUMNS.start() => {
                let share = (self.done as f64 / total.max(1) as f64).min(1.0);
                let width = room.min(*BAR_COLUMNS.end());
                let filled = (share * width as f64) as usize;
                format!("[{:<width$}] ", "=".repeat(filled))
            }
            _ => String::new(),
        };
        let line = format!("{} {bar}{text}", self.name);
        line.chars().take(columns.saturating_sub(1)).collect()
    }
}

/// `12 s`, `3 min 20 s`, `2 h 5 min`.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progress_line_always_fits_its_columns() {
        let state = |total| State {
            name: "import",
            unit: Unit::Bytes,
            done: 3 << 30,
            total,
            records: Some(12_345_678),
            begun_ns: 0,
            drawn_ns: 0,
        };
        for columns in 1..200 {
            for total in [None, Some(0), Some(4 << 30), Some(u64::MAX)] {
                let line = state(total).line(4000.0, columns);
                assert!(line.chars().count() < columns.max(1), "{columns}: {line}");
            }
        }
        assert_eq!(
            state(Some(4 << 30)).line(60.0, 120),
            "import [======================        ] 3.0 GiB of 4.0 GiB, 20 s left, \
             51.2 MiB a second, 12,345,678 records"
        );
        assert_eq!(
            state(None).line(100.0, 80),
            "import 3.0 GiB, 1 min 40 s, 30.7 MiB a second, 12,345,678 records"
        );
        assert_eq!(state(None).line(100.0, 36), "import 3.0 GiB, 1 min 40 s");
    }
}
