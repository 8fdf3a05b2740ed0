//! `backup`, `restore`, `salvage`, `verify --ranges`; commands beside a writer.

mod common;

use common::{TestDirectory, fail, run, succeed, text};

#[test]
fn a_backup_is_restored_and_the_next_one_has_what_changed() {
    let place = TestDirectory::new();
    let [db, backup, copy, again] = ["db", "backup", "copy", "again"].map(|name| place.path(name));
    succeed(&["put", text(&db), "apple", "sweet"]);
    succeed(&["backup", text(&db), text(&backup)]);
    succeed(&["put", text(&db), "pear", "soft"]);
    succeed(&["restore", text(&backup), text(&copy)]);
    assert_eq!(succeed(&["scan", text(&copy)]), b"apple\tsweet\n");
    succeed(&["backup", text(&db), text(&backup), "--verify"]);
    succeed(&["restore", text(&backup), text(&again)]);
    assert_eq!(
        succeed(&["scan", text(&again)]),
        b"apple\tsweet\npear\tsoft\n"
    );
    succeed(&["verify", text(&again)]);
}

#[test]
fn a_wrong_directory_is_refused() {
    let place = TestDirectory::new();
    let [db, backup, other] = ["db", "backup", "other"].map(|name| place.path(name));
    succeed(&["put", text(&db), "apple", "sweet"]);
    let said = fail(&["restore", text(&backup), text(&other)]);
    assert!(said.contains("does not exist"), "{said}");
    succeed(&["backup", text(&db), text(&backup)]);
    let said = fail(&["restore", text(&backup), text(&db)]);
    assert!(said.contains("there is a database already"), "{said}");
    let said = fail(&["backup", text(&db), text(&db)]);
    assert!(said.contains("directory of its own"), "{said}");
}

#[test]
fn a_salvage_names_each_damaged_range_and_keeps_the_rest() {
    let place = TestDirectory::new();
    let [db, whole, part] = ["db", "whole", "part"].map(|name| place.path(name));
    for number in 0..4 {
        let (key, value) = (format!("key-{number}"), "v".repeat(3000));
        succeed(&["put", text(&db), &key, &value]);
    }
    succeed(&["checkpoint", text(&db)]);
    assert!(succeed(&["verify", text(&db), "--ranges"]).is_empty());
    succeed(&["salvage", text(&db), text(&whole)]);
    assert_eq!(succeed(&["count", text(&whole)]), b"4\n");

    // One block has one record.
    let data = db.join("data");
    let mut content = std::fs::read(&data).unwrap();
    let is_in = |at: &usize| content[*at..].starts_with(b"vvvvvvvv");
    let first = (0..content.len()).find(is_in).unwrap();
    content[first + 100] ^= 1;
    std::fs::write(&data, content).unwrap();
    let ranges = run(&["verify", text(&db), "--ranges"]);
    assert_eq!(ranges.status.code(), Some(1));
    let said = String::from_utf8(ranges.stdout).unwrap();
    assert!(
        said.starts_with("default: keys from \"key-0\" below "),
        "{said}"
    );
    let salvaged = run(&["salvage", text(&db), text(&part)]);
    assert_eq!(salvaged.status.code(), Some(1));
    assert_eq!(succeed(&["count", text(&part)]), b"3\n");
    assert!(fail(&["salvage", text(&db), text(&part)]).contains("already"));
}

/// Commands that only read need no database to themselves.
#[test]
fn reading_commands_work_beside_a_writer() {
    let place = TestDirectory::new();
    let [db, backup, copy, file] = ["db", "backup", "copy", "out.jsonl"].map(|n| place.path(n));
    let writer = terrapin::Database::open(&db).unwrap();
    writer.default_keyspace().put("apple", "sweet").unwrap();
    assert_eq!(succeed(&["get", text(&db), "apple"]), b"sweet");
    assert_eq!(succeed(&["scan", text(&db)]), b"apple\tsweet\n");
    assert_eq!(succeed(&["count", text(&db)]), b"1\n");
    succeed(&["stat", text(&db)]);
    succeed(&["verify", text(&db)]);
    assert!(succeed(&["verify", text(&db), "--ranges"]).is_empty());
    succeed(&["export", text(&db), text(&file)]);
    assert!(std::fs::read(&file).unwrap().ends_with(b"\n"));
    succeed(&["backup", text(&db), text(&backup)]);
    writer.close().unwrap();
    succeed(&["restore", text(&backup), text(&copy)]);
    assert_eq!(succeed(&["get", text(&copy), "apple"]), b"sweet");
}

#[test]
fn a_restore_says_that_there_is_no_backup() {
    let place = TestDirectory::new();
    let said = fail(&[
        "restore",
        text(&place.path("none")),
        text(&place.path("db")),
    ]);
    assert!(said.contains("there is no backup"), "{said}");
}

#[test]
fn a_merge_without_an_operator_says_how_to_choose_one() {
    let place = TestDirectory::new();
    let db = place.path("db");
    succeed(&["put", text(&db), "apple", "sweet"]);
    let said = fail(&["merge", text(&db), "apple", "er"]);
    assert!(said.contains("--merge-operator"), "{said}");
}
