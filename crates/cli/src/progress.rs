//! A progress bar with rate and remaining time on a terminal; nothing at all elsewhere.

use std::fmt::Write;
use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::bytes::thousands;

const REDRAW: Duration = Duration::from_millis(200);

fn bar(total: Option<u64>, with_total: &str, without: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => (ProgressBar::new(total), with_total),
        None => (ProgressBar::new_spinner(), without),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(5));
    // The templates are constants of this file; should one be wrong, a plain bar is no reason to fail.
    if let Ok(style) = ProgressStyle::with_template(template) {
        let style = style.with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
            // The bar has nobody to tell of an error.
            let _ = write!(out, "{} a second", thousands(state.per_sec() as u64));
        });
        bar.set_style(style.progress_chars("=> "));
    }
    bar.enable_steady_tick(REDRAW);
    bar
}

/// Counts bytes of an input, whose size may be unknown; its message tells of records.
#[must_use]
pub fn of_bytes(total: Option<u64>) -> ProgressBar {
    bar(
        total,
        "[{bar:30}] {bytes} of {total_bytes}, {binary_bytes_per_sec}, {msg}, {eta} left",
        "{spinner} {bytes}, {binary_bytes_per_sec}, {msg}, {elapsed}",
    )
}

/// Counts operations or records.
#[must_use]
pub fn of_records(total: Option<u64>, name: &'static str) -> ProgressBar {
    let bar = bar(
        total,
        "{msg:8} [{bar:30}] {human_pos} of {human_len}, {rate}, {eta} left",
        "{msg:8} {spinner} {human_pos}, {rate}, {elapsed}",
    );
    bar.set_message(name);
    bar
}
