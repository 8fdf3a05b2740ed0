//! `cargo run --release -p prove`: tries what the ledger lacks of the full amounts, and enters it.
//! `--ci` tries each layer's smaller amount, always the same units, and enters nothing.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, thread};

use clap::Parser;
use prove::{Amount, Entry, Layer, Ledger, Summary, Units, layers, run};

/// Looks for breaches of Terrapin's promises, and keeps a ledger.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Try CI's amounts, from the first unit, and enter nothing
    #[arg(long, conflicts_with_all = ["minutes", "fresh"])]
    ci: bool,
    /// Try new seeds for this long, shared among the layers
    #[arg(long, value_parser = minutes, allow_hyphen_values = true)]
    minutes: Option<Duration>,
    /// Only this layer; may be given several times
    #[arg(long = "layer", value_name = "NAME")]
    only: Vec<String>,
    /// All layers but this one; may be given several times
    #[arg(long = "without", value_name = "NAME")]
    without: Vec<String>,
    /// Try this one unit of the one layer, by number or mutant's name, and enter nothing
    #[arg(long)]
    unit: Option<String>,
    /// Count only units tried with the current engine
    #[arg(long)]
    fresh: bool,
    /// List the layers, their amounts, and the ledger's entries for them
    #[arg(long)]
    list: bool,
    /// Units to try at once [default: the number of cores]
    #[arg(long)]
    threads: Option<usize>,
    /// The ledger's file
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/ledger.tsv"))]
    ledger: PathBuf,
    /// Where units may put files: a directory of a real file system
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// The longest time: a year.
const MINUTES_MAX: f64 = 525_600.0;

/// Above no minutes, and at most [`MINUTES_MAX`].
fn minutes(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= MINUTES_MAX => {
            Ok(Duration::from_secs_f64(minutes * 60.0))
        }
        _ => Err(format!(
            "minutes are a number above 0, {MINUTES_MAX} at most"
        )),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().collect();
    let child = prove::kernel::child(&arguments)
        .or_else(|| prove::mutants::child(&arguments))
        .or_else(|| prove::linear::child(&arguments));
    if let Some(code) = child {
        return code;
    }
    match proven(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("prove: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether nothing was found.
fn proven(arguments: &Arguments) -> Result<bool, String> {
    let chosen = choose(arguments)?;
    let mut ledger = Ledger::read(&arguments.ledger).map_err(|e| e.to_string())?;
    let commit = engine_commit();
    let counted_at = arguments.fresh.then_some(commit.as_str());
    if arguments.list {
        list(&chosen, &ledger, counted_at);
        return Ok(true);
    }
    // A separate directory, since it is removed at the end.
    let scratch = arguments
        .scratch
        .clone()
        .unwrap_or_else(env::temp_dir)
        .join(format!("prove-{}", std::process::id()));
    if let Some(unit) = &arguments.unit {
        return one_unit(&chosen, unit, &scratch);
    }
    let threads = arguments
        .threads
        .or_else(|| thread::available_parallelism().ok().map(Into::into))
        .unwrap_or(1);
    let share = arguments
        .minutes
        .map(|time| time.div_f64(chosen.len() as f64));
    let mut found = Vec::new();
    for layer in &chosen {
        let Some(amount) = amount(arguments, layer, &ledger, counted_at, share) else {
            continue;
        };
        let summary = run(layer, amount, threads, &scratch, |part| {
            if !arguments.ci {
                ledger.enter(entry(layer, &commit, part));
                if let Err(error) = ledger.write(&arguments.ledger) {
                    eprintln!("prove: {}: {error}", arguments.ledger.display());
                }
            }
        })
        .map_err(|error| format!("{}: {error}", layer.name))?;
        report(layer, &summary);
        found.extend(summary.finds.iter().map(|find| (layer.name, find.clone())));
        if arguments.ci && summary.counted < layer.ci && summary.finds.is_empty() {
            return Err(format!(
                "{}: CI is to try {} {}, and all its units have {}",
                layer.name, layer.ci, layer.counts, summary.counted
            ));
        }
    }
    let _ = std::fs::remove_dir_all(&scratch);
    // Print it again last, since only the end of a long output may be kept.
    for (name, (unit, find)) in &found {
        println!("FIND {name} {unit}: {find}");
    }
    Ok(found.is_empty())
}

fn choose(arguments: &Arguments) -> Result<Vec<Layer>, String> {
    let all = layers();
    for name in arguments.only.iter().chain(&arguments.without) {
        if !all.iter().any(|layer| layer.name == name) {
            let names: Vec<_> = all.iter().map(|layer| layer.name).collect();
            return Err(format!("no layer {name}; there are {}", names.join(", ")));
        }
    }
    let named = |names: &[String], layer: &Layer| names.iter().any(|name| name == layer.name);
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|layer| arguments.only.is_empty() || named(&arguments.only, layer))
        .filter(|layer| !named(&arguments.without, layer))
        .collect();
    if chosen.is_empty() {
        return Err("--layer and --without leave no layer to try".to_owned());
    }
    Ok(chosen)
}

/// What to try of a layer; none for nothing.
fn amount(
    arguments: &Arguments,
    layer: &Layer,
    ledger: &Ledger,
    counted_at: Option<&str>,
    share: Option<Duration>,
) -> Option<Amount> {
    if arguments.ci {
        return Some(Amount {
            first: 0,
            units: u64::MAX,
            counted: layer.ci,
            time: None,
        });
    }
    let first = match layer.units {
        // A new seed is worth more than one that was tried at another commit.
        Units::Seeds => ledger.next(layer.name, None),
        Units::Fixed(count) => match ledger.next(layer.name, counted_at) {
            // All were tried: units with finds are repeated until they have none.
            next if next >= count => ledger.unsettled(layer.name, counted_at).unwrap_or(next),
            next => next,
        },
    };
    let missing = layer
        .full
        .saturating_sub(ledger.counted(layer.name, counted_at));
    let over = match layer.units {
        Units::Seeds => missing == 0,
        Units::Fixed(count) => first >= count,
    };
    match (over, share) {
        (true, None) => None,
        (true, Some(_)) if layer.units != Units::Seeds => None,
        (_, time) => Some(Amount {
            first,
            units: u64::MAX,
            counted: if time.is_some() || layer.units != Units::Seeds {
                u64::MAX
            } else {
                missing
            },
            time,
        }),
    }
}

fn one_unit(chosen: &[Layer], unit: &str, scratch: &Path) -> Result<bool, String> {
    let [layer] = chosen else {
        return Err("--unit needs exactly one --layer".to_owned());
    };
    let unit = match unit.parse() {
        Ok(number) => Some(number),
        Err(_) if layer.name == prove::mutants::LAYER => prove::mutants::unit_of(unit),
        Err(_) => None,
    }
    .ok_or_else(|| format!("{}: no unit {unit}", layer.name))?;
    if let Units::Fixed(count) = layer.units
        && unit >= count
    {
        return Err(format!(
            "{}: no unit {unit}; there are {count}, from 0",
            layer.name
        ));
    }
    let amount = Amount {
        first: unit,
        units: 1,
        counted: u64::MAX,
        time: None,
    };
    let summary = run(layer, amount, 1, scratch, |_| {}).map_err(|e| e.to_string())?;
    let _ = std::fs::remove_dir_all(scratch);
    report(layer, &summary);
    Ok(summary.finds.is_empty())
}

fn entry(layer: &Layer, commit: &str, part: &Summary) -> Entry {
    Entry {
        layer: layer.name.to_owned(),
        commit: commit.to_owned(),
        first: part.first,
        last: part.first + part.units - 1,
        counted: part.counted,
        finds: part.finds.len() as u64,
        seconds: part.seconds,
    }
}

fn report(layer: &Layer, summary: &Summary) {
    println!(
        "{}: {} {} in {} units from {}, {} finds, {:.1} s",
        layer.name,
        summary.counted,
        layer.counts,
        summary.units,
        summary.first,
        summary.finds.len(),
        summary.seconds
    );
    for (unit, find) in &summary.finds {
        println!("  unit {unit}: {find}");
    }
}

fn list(chosen: &[Layer], ledger: &Ledger, counted_at: Option<&str>) {
    for layer in chosen {
        let finds = match ledger.finds(layer.name, counted_at) {
            0 => String::new(),
            finds => format!(", {finds} finds"),
        };
        println!(
            "{:20} {:>9} of {:>9} {}, CI {}{finds}",
            layer.name,
            ledger.counted(layer.name, counted_at),
            layer.full,
            layer.counts,
            layer.ci
        );
    }
}

/// The last commit that changed the tested code, with a `+` if the tree has changes beyond it.
fn engine_commit() -> String {
    let git = |arguments: &[&str]| {
        let paths = ["--", ".", ":!prove", ":!cli", ":!bench"];
        Command::new("git")
            .args(arguments)
            .args(paths)
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
            .output()
            .ok()
            .filter(|output| output.status.success())
            .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    match git(&["log", "-1", "--format=%h"]) {
        Some(commit) if !commit.is_empty() => {
            let changed = git(&["status", "--porcelain"]).is_none_or(|s| !s.is_empty());
            commit + if changed { "+" } else { "" }
        }
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_with_an_end_is_done_when_its_finds_are_gone() {
        let layer = Layer {
            name: "few",
            counts: "units",
            ci: 1,
            full: 5,
            units: Units::Fixed(5),
            alone: false,
            unit: |_, _| Ok(1),
        };
        let arguments = Arguments::parse_from(["prove"]);
        let mut ledger = Ledger::default();
        let first = |ledger: &Ledger| {
            let amount = amount(&arguments, &layer, ledger, None, None);
            amount.map(|amount| amount.first)
        };
        assert_eq!(first(&ledger), Some(0));
        let tried = |first, units, finds| {
            let part = Summary {
                first,
                units,
                finds,
                ..Summary::default()
            };
            entry(&layer, "c1", &part)
        };
        let find = vec![(3, prove::Find("lost".to_owned()))];
        ledger.enter(tried(0, 5, find));
        assert_eq!(first(&ledger), Some(0), "its line has a find");
        ledger.enter(tried(0, 5, Vec::new()));
        assert_eq!(first(&ledger), None);
    }
}
