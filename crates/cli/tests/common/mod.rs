//! Runs the `terrapin` binary.
#![allow(dead_code)] // each test file takes what it needs

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test, removed at its end.
pub struct TestDirectory(PathBuf);

impl TestDirectory {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "terrapin-cli-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        TestDirectory(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl AsRef<Path> for TestDirectory {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for TestDirectory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

pub fn command<S: AsRef<OsStr>>(arguments: &[S]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_terrapin"));
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

pub fn run<S: AsRef<OsStr>>(arguments: &[S]) -> Output {
    command(arguments).output().unwrap()
}

/// Runs with bytes on stdin.
pub fn run_with<S: AsRef<OsStr>>(arguments: &[S], stdin: &[u8]) -> Output {
    let mut child: Child = command(arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        // A command that refuses its arguments reads no input.
        scope.spawn(move || pipe.write_all(stdin).unwrap_or(()));
        child.wait_with_output().unwrap()
    })
}

/// Runs a command that must succeed with nothing on stderr. Returns its stdout.
pub fn succeed<S: AsRef<OsStr> + std::fmt::Debug>(arguments: &[S]) -> Vec<u8> {
    let output = run(arguments);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && complaint.is_empty(),
        "{arguments:?}: {} {complaint}",
        output.status
    );
    output.stdout
}

/// The one line on stderr of a failed command.
pub fn complaint(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert!(!output.status.success(), "it succeeded");
    assert!(
        text.starts_with("terrapin: ") && text.ends_with('\n') && text.lines().count() == 1,
        "{text:?}"
    );
    assert!(!text.contains("panicked"), "{text}");
    text
}

/// Runs a command that must fail. Returns its one line on stderr.
pub fn fail<S: AsRef<OsStr> + std::fmt::Debug>(arguments: &[S]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    complaint(&output)
}

/// Gets a key that must be absent.
pub fn missing<S: AsRef<OsStr> + std::fmt::Debug>(arguments: &[S]) {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(complaint(&output).contains("no such key"));
    assert!(output.stdout.is_empty());
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
