//! The engine's events, one line each on stderr: warnings and errors on a terminal, nothing in a
//! pipe, and in both what [`LEVEL`] asks for.

use std::env;
use std::ffi::OsString;
use std::fmt::{Debug, Display, Write};
use std::io::{self, IsTerminal};

use terrapin_base::{Error, Result};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

use crate::output;

/// The variable that sets the level: `off`, `error`, `warn`, `info`, `debug` or `trace`.
pub const LEVEL: &str = "TERRAPIN_LOG";

/// Starts printing events. Errors: an unknown level.
pub fn tell() -> Result<()> {
    let level = match asked(env::var_os(LEVEL))? {
        Some(level) => level,
        None if io::stderr().is_terminal() => LevelFilter::WARN,
        None => LevelFilter::OFF,
    };
    // No other code of this process sets one.
    let _ = tracing_subscriber::registry()
        .with(level)
        .with(Lines)
        .try_init();
    Ok(())
}

/// The level of the variable; an empty one counts as not set.
fn asked(name: Option<OsString>) -> Result<Option<LevelFilter>> {
    let name = name.filter(|name| !name.is_empty());
    name.map(|name| level(&name.to_string_lossy())).transpose()
}

fn level(name: &str) -> Result<LevelFilter> {
    name.parse().map_err(|_| {
        let message = "no such level of events: there are off, error, warn, info, debug and trace";
        Error::invalid(message).with(LEVEL, name)
    })
}

/// Prints each event as a line.
struct Lines;

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let end = if line.context.is_empty() { "" } else { ")" };
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warning",
            Level::INFO => "info",
            Level::DEBUG => "debug",
            Level::TRACE => "trace",
        };
        output::warn(format_args!(
            "{level}: {}{}{end}",
            line.message, line.context
        ));
    }
}

/// An event, worded as errors are: what, and the place in parentheses.
#[derive(Default)]
struct Line {
    message: String,
    context: String,
}

impl Line {
    fn add(&mut self, field: &Field, value: impl Display) {
        // Writing to memory cannot fail.
        let _ = if field.name() == "message" {
            write!(self.message, "{value}")
        } else {
            let begin = if self.context.is_empty() { " (" } else { ", " };
            write!(self.context, "{begin}{} {value}", field.name())
        };
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was read as `error`.
    #[test]
    fn an_empty_level_is_none() {
        let level = |name: &str| asked(Some(name.into())).unwrap();
        assert_eq!(level(""), None);
        assert_eq!(level("debug"), Some(LevelFilter::DEBUG));
        assert_eq!(asked(None).unwrap(), None);
    }
}
