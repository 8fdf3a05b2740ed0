//! The process of one mutant: its script must fail with the mutant, and the case that failed must
//! pass without it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use terrapin_base::mutant;

use super::script::Script;
use super::{Mutant, NOTICED, table};

/// Exit status: every case passed with the mutant.
const SURVIVED: u8 = 10;
/// Exit status: the case also fails without the mutant.
const UNSOUND: u8 = 11;
/// Exit status: the script took longer than [`TIME_MAX`].
const HUNG: u8 = 12;

/// Longest time for a mutant, with the case without it.
const TIME_MAX: Duration = Duration::from_secs(120);

/// Runs the script of a mutant, and prints the case that noticed it.
pub(super) fn child(name: &str, scratch: &Path) -> ExitCode {
    let mutant = table().find(|mutant| mutant.name == name);
    let Some(mutant) = mutant else {
        println!("no mutant is named {name}");
        return ExitCode::from(UNSOUND);
    };
    // A panic of a broken engine is expected, so none is printed.
    std::panic::set_hook(Box::new(|_| {}));
    let (over, is_over) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            if is_over.recv_timeout(TIME_MAX).is_err() {
                println!("the script did not end within {} s", TIME_MAX.as_secs());
                std::process::exit(HUNG.into());
            }
        });
        let (code, said) = tried(mutant, scratch);
        println!("{said}");
        let _ = over.send(());
        ExitCode::from(code)
    })
}

fn tried(mutant: &Mutant, scratch: &Path) -> (u8, String) {
    let script = &mutant.script;
    for case in 0..script.cases() {
        mutant::choose(Some(mutant.name));
        let broken = guarded(script, case, scratch);
        let reached = mutant::reached();
        mutant::choose(None);
        let Err(noticed) = broken else { continue };
        if let Err(also) = guarded(script, case, scratch) {
            let message = format!(
                "{} fails without the mutant, too: {also}",
                script.name(case)
            );
            return (UNSOUND, message);
        }
        let noticed: Vec<&str> = noticed.lines().take(2).map(str::trim).collect();
        let noticed = noticed.join(" ");
        let message = format!(
            "noticed by {} (reached {reached} times): {noticed}",
            script.name(case)
        );
        return (NOTICED, message);
    }
    let message = format!(
        "survived {} cases up to {}; reached {} times in the last",
        script.cases(),
        script.name(script.cases().saturating_sub(1)),
        {
            mutant::choose(Some(mutant.name));
            let _ = guarded(script, script.cases().saturating_sub(1), scratch);
            mutant::reached()
        }
    );
    (SURVIVED, message)
}

fn guarded(script: &Script, case: u64, scratch: &Path) -> Result<(), String> {
    let directory = scratch.join(format!("case-{case}"));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(&directory).map_err(|e| format!("{}: {e}", directory.display()))?;
    let done = catch_unwind(AssertUnwindSafe(|| script.run(case, &directory)));
    let _ = std::fs::remove_dir_all(&directory);
    done.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(format!("a panic: {}", text.unwrap_or("no message")))
    })
}
