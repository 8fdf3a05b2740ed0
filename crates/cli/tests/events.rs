//! The engine's events in the output of commands.

mod common;

use common::{TestDirectory, command, complaint, text};

#[test]
fn a_command_that_waits_for_another_process_says_so_at_the_chosen_level() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let held = terrapin::Database::open(&db).unwrap();
    // Commands that only read do not wait: they read beside the writer.
    let put = ["put", text(&db), "k", "v"];
    // At the same time: each waits until it gives up.
    let told = command(&put).env("TERRAPIN_LOG", "warn").spawn().unwrap();
    let silent = command(&put).env_remove("TERRAPIN_LOG").spawn().unwrap();
    let (told, silent) = (
        told.wait_with_output().unwrap(),
        silent.wait_with_output().unwrap(),
    );
    drop(held);

    assert!(complaint(&silent).contains("another process"));
    let lines = String::from_utf8(told.stderr).unwrap();
    let [event, error] = lines.lines().collect::<Vec<_>>()[..] else {
        panic!("{lines}")
    };
    assert!(
        event.starts_with("terrapin: warning: another process has the file open"),
        "{event}"
    );
    assert!(
        event.contains(&format!("(file {}", text(&db))) && event.ends_with("wait_ms_max 5000)"),
        "{event}"
    );
    assert_eq!(format!("{error}\n").into_bytes(), silent.stderr);
    assert_eq!(
        (told.status.code(), silent.status.code()),
        (Some(2), Some(2))
    );
}

#[test]
fn an_unknown_level_is_refused_before_any_work() {
    let place = TestDirectory::new();
    let mut put = command(&["put", text(&place.path("db")), "k", "v"]);
    let output = put.env("TERRAPIN_LOG", "loud").output().unwrap();
    let complaint = complaint(&output);
    assert!(
        complaint.contains("loud") && complaint.contains("debug"),
        "{complaint}"
    );
    assert_eq!(place.names(), [""; 0]);
}
