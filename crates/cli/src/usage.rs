//! The command line as clap reads it, and the messages for a wrong one.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind as Kind};
use clap::{Command, CommandFactory, FromArgMatches};

use crate::{Cli, output};

/// All commands and options.
#[must_use]
pub fn command() -> Command {
    with_negative_numbers(Cli::command())
}

/// Takes a negative number after an option as the option's value, so that the option reports what
/// is wrong with it.
fn with_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|argument| match argument.get_action().takes_values() {
        true => argument.allow_negative_numbers(true),
        false => argument,
    });
    command.mut_subcommands(with_negative_numbers)
}

/// Parses the command line. If there is no command to run, the message was printed already.
pub fn read(arguments: &[OsString]) -> Result<Cli, ExitCode> {
    let read = command().try_get_matches_from(arguments);
    read.and_then(|matches| Cli::from_arg_matches(&matches))
        .map_err(|error| say(&error, arguments))
}

/// Prints clap's help and version to stdout, and a wrong command line as one line on stderr.
fn say(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    match error.kind() {
        Kind::DisplayHelp | Kind::DisplayVersion => printed(error.print()),
        Kind::DisplayHelpOnMissingArgumentOrSubcommand => {
            // If stderr is closed, nothing can be printed.
            let _ = error.print();
            ExitCode::from(output::FAILED)
        }
        _ => {
            let line = in_one_line(&error.to_string(), |argument| {
                reads_behind_dashes(argument, arguments)
            });
            let tip = match is_bare_keyspace(error, arguments) {
                true => "; tip: -k names a keyspace",
                false => "",
            };
            output::warn(format_args!("{line}{tip} (--help tells more)"));
            ExitCode::from(output::FAILED)
        }
    }
}

/// The exit code after help was printed to stdout. A closed pipe is no failure.
pub fn printed(print: io::Result<()>) -> ExitCode {
    match print.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            output::complain(&output::stdout_failed(error));
            ExitCode::from(output::FAILED)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Whether the user named a keyspace of `terrapin keyspace` without `-k`.
fn is_bare_keyspace(error: &clap::Error, arguments: &[OsString]) -> bool {
    let bare = error.get(ContextKind::InvalidArg).map(ToString::to_string);
    let is_keyspace = arguments
        .get(1)
        .is_some_and(|command| command == "keyspace");
    let is_unknown = error.kind() == Kind::UnknownArgument;
    is_keyspace && is_unknown && bare.is_some_and(|bare| !bare.starts_with('-'))
}

/// Whether the command line would be right with `--` before that argument.
fn reads_behind_dashes(argument: &str, arguments: &[OsString]) -> bool {
    let Some(at) = arguments.iter().position(|given| given == argument) else {
        return false;
    };
    let mut changed = arguments.to_vec();
    changed.insert(at, "--".into());
    command().try_get_matches_from(changed).is_ok()
}

/// Clap's message for a wrong command line: the error and its helpful tips, without usage.
fn in_one_line(text: &str, reads_behind_dashes: impl Fn(&str) -> bool) -> String {
    let one_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_good = |tip: &str| match tip.strip_prefix("tip: to pass '") {
        Some(rest) => rest
            .split_once('\'')
            .is_some_and(|(argument, _)| reads_behind_dashes(argument)),
        None => tip.starts_with("tip:"),
    };
    let mut paragraphs = text.split("\n\n");
    let mut told: Vec<String> = paragraphs.next().map(one_line).into_iter().collect();
    told.extend(
        paragraphs
            .flat_map(str::lines)
            .map(one_line)
            .filter(|line| is_good(line)),
    );
    let line = told.join("; ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_command_line_gives_one_line_with_helpful_tips() {
        let text = "error: unrecognized subcommand 'improt'\n\n  tip: a similar subcommand exists: 'import'\n\nUsage: terrapin <COMMAND>\n";
        assert_eq!(
            in_one_line(text, |_| true),
            "unrecognized subcommand 'improt'; tip: a similar subcommand exists: 'import'"
        );
        assert_eq!(
            in_one_line("error: what\n  more\n\nUsage: x", |_| true),
            "what more"
        );
        let text = "error: unexpected argument '--jsno' found\n\n  tip: a similar argument exists: '--json'\n  tip: to pass '--jsno' as a value, use '-- --jsno'\n\nUsage: x";
        let similar =
            "unexpected argument '--jsno' found; tip: a similar argument exists: '--json'";
        assert_eq!(in_one_line(text, |_| false), similar);
        assert!(in_one_line(text, |argument| argument == "--jsno").ends_with("use '-- --jsno'"));
    }

    #[test]
    fn every_option_takes_a_negative_number_for_its_value() {
        fn check(command: &Command) {
            for argument in command
                .get_arguments()
                .filter(|a| a.get_action().takes_values())
            {
                let id = argument.get_id();
                assert!(
                    argument.is_allow_negative_numbers_set(),
                    "{} {id}",
                    command.get_name()
                );
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}
