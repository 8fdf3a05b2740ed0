//! `backup` and `restore`.

mod common;

use common::{TestDirectory, fail, succeed, text};

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
