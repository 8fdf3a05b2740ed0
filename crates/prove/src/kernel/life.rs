//! One life of a child process: started, followed, and ended at a chosen moment.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;
use std::{env, thread};

use terrapin_model::Random;

use crate::Find;
use crate::kernel::child::{WRITER, pause};
use crate::kernel::report::{Acknowledged, Record};

const SIGKILL: i32 = 9;
/// Most seconds of an open, and of a child after its end was due.
const PATIENCE: Duration = Duration::from_secs(60);

/// When a child's life ends.
#[derive(Clone, Copy, Debug)]
pub enum Moment {
    /// This long after its start: while it opens.
    Opening(Duration),
    /// This long after it began to write.
    Writing(Duration),
}

impl Moment {
    /// A random one: every fourth while the child opens.
    #[must_use]
    pub fn random(random: &mut Random) -> Self {
        if random.one_in(4) {
            Moment::Opening(Duration::from_micros(random.below(12_000)))
        } else if random.one_in(3) {
            Moment::Writing(Duration::from_micros(random.scaled(20_000)))
        } else {
            Moment::Writing(Duration::from_micros(random.below(1_500_000)))
        }
    }
}

/// Runs a child in a directory through one life: at the moment, `cut` is called and the child is
/// killed. Earlier errors of the child are finds, and so is a panic at any time.
pub fn live(
    directory: &Path,
    seed: u64,
    life: u64,
    moment: Moment,
    stderr: &Path,
    cut: impl FnOnce() -> Result<(), Find> + Send,
) -> Result<Acknowledged, Find> {
    let mut command = Command::new(env::current_exe()?);
    command
        .args([WRITER.as_ref(), directory.as_os_str()])
        .args([seed.to_string(), life.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(stderr)?);
    let mut process = command.spawn()?;
    let Some(mut pipe) = process.stdout.take() else {
        return Err(Find("a child without a pipe".to_owned()));
    };
    let cutting = AtomicBool::new(false);
    let (opened, is_open) = channel();
    thread::scope(|scope| {
        let killer = scope.spawn(|| end(process, moment, is_open, &cutting, cut));
        let mut acknowledged = Acknowledged::default();
        let mut sound = Ok(());
        loop {
            match Record::read(&mut pipe) {
                Ok(None) => break,
                Ok(Some(record)) => {
                    if record == Record::Failed && !cutting.load(Ordering::SeqCst) {
                        sound = Err(Find(format!("the child failed: {}", said(stderr))));
                    }
                    if acknowledged.settled.is_none() && cutting.load(Ordering::SeqCst) {
                        acknowledged.settle();
                    }
                    if !acknowledged.take(record) {
                        sound = Err(Find(format!("a report out of order: {record:?}")));
                    }
                    if record == Record::Opened {
                        // The killer may have come first.
                        let _ = opened.send(());
                    }
                }
                Err(error) => {
                    sound = Err(error.into());
                    break;
                }
            }
        }
        drop(opened);
        let ended = killer
            .join()
            .unwrap_or_else(|_| Err(Find("the killer panicked".to_owned())));
        let (status, was_cut) = ended?;
        sound?;
        let text = said(stderr);
        if text.contains("panicked") || (!was_cut && status.signal() != Some(SIGKILL)) {
            return Err(Find(format!("the child ended by itself, {status}: {text}")));
        }
        Ok(acknowledged)
    })
}

/// Waits for the moment, cuts, kills. Returns how the child ended, and whether the cut may have
/// caused its failure.
fn end(
    mut process: Child,
    moment: Moment,
    is_open: Receiver<()>,
    cutting: &AtomicBool,
    cut: impl FnOnce() -> Result<(), Find>,
) -> Result<(ExitStatus, bool), Find> {
    let delay = match moment {
        Moment::Opening(delay) => delay,
        Moment::Writing(delay) => match is_open.recv_timeout(PATIENCE) {
            Ok(()) => delay,
            // The child has ended; its status says so.
            Err(RecvTimeoutError::Disconnected) => Duration::ZERO,
            Err(RecvTimeoutError::Timeout) => {
                process.kill()?;
                process.wait()?;
                return Err(Find(format!("the open took more than {PATIENCE:?}")));
            }
        },
    };
    pause(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX));
    if let Some(status) = process.try_wait()? {
        return Ok((status, false));
    }
    cutting.store(true, Ordering::SeqCst);
    let outcome = cut();
    process.kill()?;
    let status = process.wait()?;
    outcome?;
    Ok((status, true))
}

/// The end of the child's standard error.
fn said(stderr: &Path) -> String {
    let text = fs::read(stderr).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let from = text.len().saturating_sub(2000);
    let from = (from..text.len()).find(|&i| text.is_char_boundary(i));
    text[from.unwrap_or(0)..].trim().to_owned()
}

/// Keeps a directory for the person who looks at a find, and returns its place.
pub fn keep(directory: &Path, layer: &str, unit: u64, find: Find) -> Find {
    let kept = env::temp_dir().join(format!("prove-find-{layer}-{unit}"));
    let _ = fs::remove_dir_all(&kept);
    match copy(directory, &kept) {
        Ok(()) => Find(format!(
            "{find} (unit {unit} of {layer}; the files as they were found: {})",
            kept.display()
        )),
        Err(error) => Find(format!("{find} (the files could not be kept: {error})")),
    }
}

/// Copies the files of a directory.
pub fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}
