//! Pipes whose reader goes away, links, open files, and terminals. (Closed pipes behind commands
//! that only print are in `formats.rs`.)

mod common;

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

use common::{TestDirectory, command, complaint, fail, run, run_with, succeed, text};
use rustix::fs::{CWD, Mode, mkfifoat};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

fn lines(numbers: std::ops::Range<u32>) -> String {
    numbers.map(|n| format!("k{n:06}\tvalue\n")).collect()
}

/// An import of tsv from a pipe, under way.
fn import(db: &Path, ack_every: &str) -> Child {
    let mut command = command(&["import", text(db), "-", "--format", "tsv"]);
    command.args(["--ack-every", ack_every]);
    command.stdin(Stdio::piped()).spawn().unwrap()
}

#[test]
fn an_import_continues_without_a_reader_of_its_acknowledgements() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let mut child = import(&db, "1000");
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(lines(0..1000).as_bytes()).unwrap();
    let mut said = String::new();
    stdout.read_line(&mut said).unwrap();
    assert_eq!(said, "acknowledged 1000\n");
    drop(stdout);
    stdin.write_all(lines(1000..5500).as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
    assert!(complaint.contains("continues without"), "{complaint}");
    assert_eq!(succeed(&["count", text(&db)]), b"5500\n");
}

#[test]
fn an_import_that_fails_behind_a_closed_pipe_still_fails() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let mut child = import(&db, "10");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all((lines(0..100) + "no tab\n").as_bytes())
        .unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("malformed line 101"), "{complaint}");
}

#[test]
fn an_import_that_cannot_report_its_end_says_how_much_is_stored() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let input = place.write("input.tsv", lines(0..25));
    let mut import = command(&["import", text(&db), text(&input), "--ack-every", "1000"]);
    import.stdout(File::options().write(true).open("/dev/full").unwrap());
    let error = complaint(&import.output().unwrap());
    assert!(error.contains("cannot write to stdout"), "{error}");
    assert!(error.contains("records imported before it 25"), "{error}");
    assert_eq!(succeed(&["count", text(&db)]), b"25\n");
}

#[test]
fn an_export_into_a_named_pipe_fails_with_its_reader() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let input = lines(0..100_000);
    let import = ["import", text(&db), "-", "--format", "tsv"];
    assert!(run_with(&import, input.as_bytes()).status.success());
    let fifo = place.path("fifo");
    mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
    let output = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut byte = [0];
            let count = File::open(&fifo).unwrap().read(&mut byte).unwrap();
            assert_eq!(count, 1);
        });
        let output = run(&["export", text(&db), text(&fifo), "--format", "tsv"]);
        // If the export never opened it, its reader would wait without end.
        File::options().read(true).write(true).open(&fifo).unwrap();
        output
    });
    assert_eq!(output.status.code(), Some(2));
    assert!(complaint(&output).contains("cannot write"));
}

#[test]
fn an_export_to_a_link_writes_the_file_behind_it() {
    let place = TestDirectory::new();
    let db = place.path("db");
    succeed(&["put", text(&db), "k", "v"]);
    let target = place.write("target.tsv", "old");
    std::fs::set_permissions(&target, Permissions::from_mode(0o604)).unwrap();
    std::fs::create_dir(place.path("there")).unwrap();
    let (link, second) = (place.path("link.tsv"), place.path("there/second.tsv"));
    symlink("target.tsv", &link).unwrap();
    symlink("../link.tsv", &second).unwrap();
    succeed(&["export", text(&db), text(&second)]);
    assert_eq!(second.read_link().unwrap(), Path::new("../link.tsv"));
    assert_eq!(link.read_link().unwrap(), Path::new("target.tsv"));
    assert_eq!(std::fs::read(&target).unwrap(), b"k\tv\n");
    let mode = target.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o604, "the old file's permissions");

    let dangling = place.path("dangling.tsv");
    symlink("there/new.tsv", &dangling).unwrap();
    succeed(&["export", text(&db), text(&dangling)]);
    assert!(dangling.is_symlink());
    let new = place.path("there/new.tsv");
    assert_eq!(std::fs::read(new).unwrap(), b"k\tv\n");

    let round = place.path("round.tsv");
    symlink("round.tsv", &round).unwrap();
    assert!(fail(&["export", text(&db), text(&round)]).contains("round.tsv"));
    assert_eq!(
        place.names(),
        [
            "dangling.tsv",
            "db",
            "link.tsv",
            "round.tsv",
            "target.tsv",
            "there"
        ]
    );
}

#[test]
fn an_export_to_an_open_file_appends() {
    let place = TestDirectory::new();
    let db = place.path("db");
    succeed(&["put", text(&db), "k", "v"]);
    let out = place.write("out", "before\n");
    let link = place.path("link");
    symlink("/proc/self/fd/1", &link).unwrap();
    for path in ["/proc/self/fd/1", text(&link)] {
        let mut export = command(&["export", text(&db), path, "--format", "tsv"]);
        export.stdout(File::options().append(true).open(&out).unwrap());
        let output = export.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(std::fs::read(&out).unwrap(), b"before\nk\tv\nk\tv\n");
    assert!(link.is_symlink());
    assert_eq!(place.names(), ["db", "link", "out"]);
}

/// Reads lines of a command's stderr up to one with a given text.
fn until_told(stderr: &mut impl BufRead, what: &str) {
    let mut told = String::new();
    while !told.contains(what) {
        told.clear();
        assert_ne!(
            stderr.read_line(&mut told).unwrap(),
            0,
            "it ended without {what:?}"
        );
    }
}

/// Records read used to wait for 500 records or the input's end.
#[test]
fn an_import_writes_its_records_when_the_input_pauses() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let mut command = command(&["import", text(&db), "-", "--format", "tsv"]);
    command.env("TERRAPIN_LOG", "debug").stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    // The beginning of a record waits for its end.
    for records in ["a\t1\nb\t2\nc\t", "3\nd\t4\ne"] {
        stdin.write_all(records.as_bytes()).unwrap();
        until_told(&mut stderr, "the input paused");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(succeed(&["scan", text(&db)]), b"a\t1\nb\t2\nc\t3\nd\t4\n");
}

#[test]
fn a_signal_ends_an_import_after_the_records_read_and_reports_their_number() {
    for (signal, name) in [(Signal::INT, "SIGINT"), (Signal::TERM, "SIGTERM")] {
        let place = TestDirectory::new();
        let db = place.path("db");
        let mut child = import(&db, "5");
        let mut stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdin.write_all((lines(0..7) + "half").as_bytes()).unwrap();
        let mut said = String::new();
        stdout.read_line(&mut said).unwrap();
        assert_eq!(said, "acknowledged 5\n");
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = child.wait_with_output().unwrap();
        // It ends as a process killed by the signal, so that a shell's loop ends too.
        assert_eq!(output.status.signal(), Some(signal.as_raw()));
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(
            told.contains(name) && told.contains("records imported before it 7"),
            "{told}"
        );
        assert_eq!(told.lines().count(), 1, "{told}");
        assert_eq!(succeed(&["scan", text(&db)]), lines(0..7).as_bytes());
        succeed(&["verify", text(&db)]);
    }
}

#[test]
fn a_signal_that_is_ignored_stays_ignored() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let line = "trap '' INT; exec \"$0\" import \"$1\" - --format tsv --ack-every 5";
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", line, env!("CARGO_BIN_EXE_terrapin"), text(&db)]);
    shell.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(lines(0..5).as_bytes()).unwrap();
    stdout.read_line(&mut String::new()).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    stdin.write_all(lines(5..10).as_bytes()).unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert_eq!(succeed(&["count", text(&db)]), b"10\n");
}

/// A command's output on a terminal (stdout or stderr), and on a pipe for the other one.
fn on_terminal<S: AsRef<std::ffi::OsStr>>(arguments: &[S], stdout: bool) -> (String, String) {
    on_terminal_of(0, arguments, stdout)
}

/// The same on a terminal with this many columns; none for one that does not report them.
fn on_terminal_of<S: AsRef<std::ffi::OsStr>>(
    columns: u16,
    arguments: &[S],
    stdout: bool,
) -> (String, String) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let theirs = ioctl_tiocgptpeer(&ours, flags).unwrap();
    let size = Winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    tcsetwinsize(&theirs, size).unwrap();
    let mut command = command(arguments);
    if stdout {
        command.stdout(theirs);
    } else {
        command.stderr(theirs);
    }
    let child = command.spawn().unwrap();
    // It holds the terminal's other side open.
    drop(command);
    let (output, shown) = std::thread::scope(|scope| {
        // After all its input, a terminal whose other side is closed ends with an error; a full one
        // waits for its reader.
        let reader = scope.spawn(|| {
            let (mut ours, mut shown) = (File::from(ours), Vec::new());
            let mut piece = [0; 4096];
            while let Ok(count @ 1..) = ours.read(&mut piece) {
                shown.extend_from_slice(&piece[..count]);
            }
            shown
        });
        (child.wait_with_output().unwrap(), reader.join().unwrap())
    });
    assert!(output.status.success());
    let piped = if stdout { output.stderr } else { output.stdout };
    let shown = String::from_utf8(shown).unwrap().replace("\r\n", "\n");
    (shown, String::from_utf8(piped).unwrap())
}

#[test]
fn stored_control_characters_reach_pipes_but_not_terminals() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let key = "é\x1b[31m\n";
    let value = ["x\\\x1b]0;title\x07\u{9b}2J\ty\nz".as_bytes(), b"\x9b\xff"].concat();
    let argument = std::ffi::OsStr::from_bytes(&value);
    succeed(&["put".as_ref(), db.as_os_str(), key.as_ref(), argument]);

    assert_eq!(succeed(&["get", text(&db), key]), value);
    let scanned = [key.as_bytes(), b"\t", &value[..], b"\n"].concat();
    assert_eq!(succeed(&["scan", text(&db)]), scanned);
    let exported = [&b"\""[..], key.as_bytes(), b"\",\"", &value, b"\"\r\n"].concat();
    assert_eq!(succeed(&["export", text(&db)]), exported);

    let shown = |arguments: &[&str]| {
        let (shown, complaint) = on_terminal(arguments, true);
        assert_eq!(complaint, "");
        shown
    };
    let (head, tail) = ("x\\\\x1b]0;title\\x07\\xc2\\x9b2J", "\\x9b\\xff");
    assert_eq!(
        shown(&["get", text(&db), key]),
        format!("{head}\ty\nz{tail}\n")
    );
    assert_eq!(
        shown(&["scan", text(&db)]),
        format!("é\\x1b[31m\\n\t{head}\\ty\\nz{tail}\n")
    );
    assert_eq!(
        shown(&["export", text(&db)]),
        format!("\"é\\x1b[31m\n\",\"{head}\ty\nz{tail}\"\r\n")
    );
}

#[test]
fn a_terminal_shows_what_was_created() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let told = |arguments: &[&str]| {
        let (told, said) = on_terminal(arguments, false);
        assert_eq!(said, "");
        told
    };
    let put = ["put", text(&db), "k", "v"];
    assert_eq!(told(&put), format!("created the database {}\n", text(&db)));
    assert_eq!(told(&put), "");
    let put = ["put", text(&db), "k", "v", "-k", "other"];
    assert_eq!(told(&put), "created the keyspace other\n");
    assert_eq!(told(&put), "");
    // A pipe gets no such line.
    succeed(&["put", text(&place.path("another")), "k", "v", "-k", "other"]);
}

/// The line used to be wider than most terminals, and each redrawing left one behind.
#[test]
fn progress_fits_the_terminal_and_ends_with_a_summary() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let bench = "--workloads load,c --records 60000 --operations 400000 --memory 16MiB";
    for columns in [12, 40, 80] {
        let db = place.path(&format!("bench-{columns}"));
        let arguments: Vec<&str> = ["bench", "ycsb", text(&db)]
            .into_iter()
            .chain(bench.split(' '))
            .collect();
        let (shown, _) = on_terminal_of(columns, &arguments, false);
        for line in shown.split(['\r', '\n']) {
            let line = line.trim_start_matches("\x1b[K");
            assert!(!line.contains('\x1b'), "{line:?}");
            let is_progress = line.starts_with("ycsb ");
            assert!(
                !is_progress || line.chars().count() < columns.into(),
                "{line:?}"
            );
        }
    }
    let input = place.write("in.tsv", lines(0..1));
    let (told, _) = on_terminal(&["import", text(&db), text(&input)], false);
    assert!(told.contains("imported 1 record in "), "{told}");
    let out = place.path("out.tsv");
    let (told, _) = on_terminal(&["export", text(&db), text(&out)], false);
    assert!(told.starts_with("exported 1 record in "), "{told}");
}

#[test]
fn a_signal_ends_an_export_and_leaves_no_file() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let input = lines(0..200_000);
    let import = [
        "import",
        text(&db),
        "-",
        "--format",
        "tsv",
        "--memory",
        "16MiB",
    ];
    assert!(run_with(&import, input.as_bytes()).status.success());
    let out = place.write("out.tsv", "old");
    let ended = (0..100).any(|_| {
        let child = command(&["export", text(&db), text(&out)]).spawn().unwrap();
        while !place.names().iter().any(|name| name.contains(".partial-")) {
            if std::fs::read(&out).unwrap() != b"old" {
                break;
            }
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(place.names(), ["db", "out.tsv"]);
        let is_whole = std::fs::read(&out).unwrap() == input.as_bytes();
        if !is_whole {
            assert_eq!(std::fs::read(&out).unwrap(), b"old");
            assert_eq!(output.status.signal(), Some(Signal::INT.as_raw()));
        }
        std::fs::write(&out, "old").unwrap();
        !is_whole
    });
    assert!(ended, "every export was over before the signal came");
}
