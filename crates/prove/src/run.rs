//! Goes through a layer's units until an amount or a time is reached, on as many threads as the
//! machine has, and enters the results. A panic is a find. Results without a gap are entered as
//! they end, so a stopped run loses little. They are entered at the end too, even after an error.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, io, thread};

use indicatif::{ProgressBar, ProgressStyle};

use crate::layer::{Find, Layer, Units};

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub struct Amount {
    /// The first unit.
    pub first: u64,
    /// The most units.
    pub units: u64,
    /// Until this count.
    pub counted: u64,
    /// Or for this long.
    pub time: Option<Duration>,
}

/// The trials.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The first unit.
    pub first: u64,
    /// Units tried from there without a gap.
    pub units: u64,
    /// Their counts.
    pub counted: u64,
    /// Units with finds, and the finds.
    pub finds: Vec<(u64, Find)>,
    /// Wall time.
    pub seconds: f64,
}

struct State {
    next: u64,
    /// Of all that ended.
    counted: u64,
    /// Ended, with a gap before them.
    ended: BTreeMap<u64, Result<u64, Find>>,
    summary: Summary,
    entered_s: f64,
    /// A worker failed: trials of the others beyond its unit would not be entered.
    failed: bool,
}

/// Tries units of a layer. `enter` gets the results since its last call, every few seconds and at
/// the end.
pub fn run(
    layer: &Layer,
    amount: Amount,
    threads: usize,
    scratch: &Path,
    mut enter: impl FnMut(&Summary) + Send,
) -> io::Result<Summary> {
    let began = clock();
    let bar = progress(layer, amount);
    let state = Mutex::new(State {
        next: amount.first,
        counted: 0,
        ended: BTreeMap::new(),
        summary: Summary {
            first: amount.first,
            ..Summary::default()
        },
        entered_s: 0.0,
        failed: false,
    });
    let enter: Mutex<&mut (dyn FnMut(&Summary) + Send)> = Mutex::new(&mut enter);
    let total = Mutex::new(Summary {
        first: amount.first,
        ..Summary::default()
    });
    let threads = if layer.alone { 1 } else { threads };
    let work = |worker: usize| -> io::Result<()> {
        loop {
            let unit = {
                let mut state = lock(&state);
                let over = amount
                    .time
                    .is_some_and(|time| began() >= time.as_secs_f64());
                let all = state.next - amount.first >= amount.units
                    || matches!(layer.units, Units::Fixed(count) if state.next >= count);
                if state.counted >= amount.counted || over || all || state.failed {
                    return Ok(());
                }
                state.next += 1;
                state.next - 1
            };
            let directory = scratch.join(format!("{}-{worker}", layer.name));
            let _ = fs::remove_dir_all(&directory);
            if let Err(error) = fs::create_dir_all(&directory) {
                lock(&state).failed = true;
                return Err(error);
            }
            let outcome = guarded(layer, unit, &directory);
            let _ = fs::remove_dir_all(&directory);
            if let Err(find) = &outcome {
                bar.suspend(|| eprintln!("FIND {} {unit}: {find}", layer.name));
            }
            let mut state = lock(&state);
            state.counted += outcome.as_ref().copied().unwrap_or(0);
            bar.set_position(state.counted);
            state.ended.insert(unit, outcome);
            let now = began();
            if settle(&mut state, &total) && now - state.entered_s > 5.0 {
                flush(&mut state, now, &enter);
            }
        }
    };
    let worked = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads.max(1))
            .map(|worker| {
                let work = &work;
                scope.spawn(move || work(worker))
            })
            .collect();
        workers.into_iter().try_for_each(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a worker panicked")))
        })
    });
    let mut state = lock(&state);
    flush(&mut state, began(), &enter);
    bar.finish_and_clear();
    worked?;
    let mut total = lock(&total).clone();
    total.seconds = began();
    Ok(total)
}

/// Moves results without a gap into the summaries.
fn settle(state: &mut State, total: &Mutex<Summary>) -> bool {
    let mut total = lock(total);
    while let Some(outcome) = state.ended.remove(&(total.first + total.units)) {
        let unit = total.first + total.units;
        for summary in [&mut state.summary, &mut *total] {
            summary.units += 1;
            match &outcome {
                Ok(counted) => summary.counted += counted,
                Err(find) => summary.finds.push((unit, find.clone())),
            }
        }
    }
    state.summary.units > 0
}

fn flush(state: &mut State, now: f64, enter: &Mutex<&mut (dyn FnMut(&Summary) + Send)>) {
    if state.summary.units == 0 {
        return;
    }
    let rest = Summary {
        first: state.summary.first + state.summary.units,
        ..Summary::default()
    };
    let mut summary = std::mem::replace(&mut state.summary, rest);
    summary.seconds = now - state.entered_s;
    state.entered_s = now;
    lock(enter)(&summary);
}

fn guarded(layer: &Layer, unit: u64, directory: &Path) -> Result<u64, Find> {
    caught(|| (layer.unit)(unit, directory).map_err(|find| find.0)).map_err(Find)
}

/// The message of a panic.
pub(crate) fn caught<R>(run: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("no message")))
    })
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Seconds since now.
fn clock() -> impl Fn() -> f64 + Sync {
    let env = terrapin_base::Env::threads();
    let began = env.now_ns();
    move || (env.now_ns() - began) as f64 / 1e9
}

fn progress(layer: &Layer, amount: Amount) -> ProgressBar {
    let bar = ProgressBar::new(amount.counted);
    let form = format!(
        "{{elapsed_precise}} {} {{pos}} of {{len}} {}",
        layer.name, layer.counts
    );
    if let Ok(style) = ProgressStyle::with_template(&form) {
        bar.set_style(style);
    }
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_tried_before_a_workers_failure_are_entered() {
        /// The third unit removes the directory that the fourth needs.
        fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
            let parent = scratch.parent().ok_or_else(|| Find("no parent".into()))?;
            if unit == 2 {
                fs::remove_dir_all(parent)?;
                fs::write(parent, "in the way")?;
            }
            Ok(10)
        }
        let layer = Layer {
            name: "failing",
            counts: "units",
            ci: 1,
            full: 1,
            units: Units::Seeds,
            alone: true,
            unit,
        };
        let amount = Amount {
            first: 0,
            units: 100,
            counted: u64::MAX,
            time: None,
        };
        let scratch = std::env::temp_dir().join(format!("prove-run-{}", std::process::id()));
        let mut entered = Vec::new();
        let ended = run(&layer, amount, 1, &scratch, |part| {
            entered.push((part.first, part.units, part.counted));
        });
        fs::remove_file(&scratch).unwrap();
        assert!(ended.is_err());
        assert_eq!(entered, [(0, 3, 30)]);
    }
}
