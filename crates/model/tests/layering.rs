//! The layering of docs/ARCHITECTURE.md: dependencies between crates point strictly downward, the
//! core has at most twelve direct dependencies, and the main documents exist.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Direct dependencies from a registry that the crates below the command may have in all.
const CORE_DEPENDENCIES_MAX: usize = 12;
/// The crates that a user of the library compiles.
const CORE: [&str; 15] = [
    "terrapin-base",
    "terrapin-disk",
    "terrapin-filter",
    "terrapin-pages",
    "terrapin-wal",
    "terrapin-memtable",
    "terrapin-recordcache",
    "terrapin-valuelog",
    "terrapin-valuemap",
    "terrapin-structure",
    "terrapin-runs",
    "terrapin-betree",
    "terrapin-hashtrie",
    "terrapin-inplace",
    "terrapin",
];

struct Package {
    layer: u64,
    /// Name, and whether it is needed to build the crate itself (not only its tests).
    dependencies: Vec<(String, bool)>,
}

fn packages() -> BTreeMap<String, Package> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let list = metadata["packages"].as_array().expect("a list of packages");
    list.iter()
        .map(|package| {
            let name = package["name"].as_str().expect("a name").to_owned();
            let layer = package["metadata"]["layer"].as_u64();
            let layer = layer
                .unwrap_or_else(|| panic!("{name} does not say its layer in [package.metadata]"));
            let dependencies = package["dependencies"]
                .as_array()
                .expect("a list of dependencies");
            let dependencies = dependencies
                .iter()
                .map(|d| {
                    // The model checker is only in builds of its own (`base::sync`).
                    let builds = d["kind"].is_null() && d["target"] != "cfg(terrapin_shuttle)";
                    (d["name"].as_str().expect("a name").to_owned(), builds)
                })
                .collect();
            (
                name,
                Package {
                    layer,
                    dependencies,
                },
            )
        })
        .collect()
}

#[test]
fn arrows_between_crates_point_strictly_downward() {
    let packages = packages();
    assert!(
        CORE.iter().all(|name| packages.contains_key(*name)),
        "a core crate is missing"
    );
    let mut wrong = Vec::new();
    for (name, package) in &packages {
        for (dependency, _) in &package.dependencies {
            if let Some(below) = packages.get(dependency)
                && below.layer >= package.layer
            {
                wrong.push(format!(
                    "{name} (layer {}) → {dependency} (layer {})",
                    package.layer, below.layer
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "arrows that do not point downward:\n{}",
        wrong.join("\n")
    );
}

#[test]
fn the_core_has_few_direct_dependencies() {
    let packages = packages();
    let outside: BTreeSet<&String> = CORE
        .iter()
        .flat_map(|name| &packages[*name].dependencies)
        .filter(|(dependency, builds)| *builds && !packages.contains_key(dependency))
        .map(|(dependency, _)| dependency)
        .collect();
    assert!(
        outside.len() <= CORE_DEPENDENCIES_MAX,
        "{} direct dependencies: {outside:?}",
        outside.len()
    );
}

#[test]
fn the_main_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for name in [
        "ARCHITECTURE",
        "FORMAT",
        "DURABILITY",
        "CONCURRENCY",
        "TESTING",
    ] {
        let path = root.join("docs").join(name).with_extension("md");
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(
            text.lines().count() > 20,
            "{} says too little",
            path.display()
        );
    }
}

/// The model checker sees only what comes from `base::sync`.
#[test]
fn locks_and_atomics_come_from_one_place() {
    // The real disk is not modelled. A lock with one short section, which shares nothing else,
    // keeps freed buffers. The chosen mutant is a static, and only its own build has it.
    let apart = [
        "base/src/sync/",
        "base/src/mutant.rs",
        "disk/src/real/",
        "disk/src/region",
    ];
    let elsewhere = [
        "sync::atomic::Atomic",
        "std::sync::atomic",
        "std::sync::{Mutex",
        "std::sync::Mutex",
        "std::sync::RwLock",
        "std::sync::Condvar",
        "parking_lot",
        "std::thread::yield_now",
        "std::hint::spin_loop",
    ];
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    let mut folders: Vec<_> = CORE
        .iter()
        .map(|name| root.join(name.trim_start_matches("terrapin-")).join("src"))
        .collect();
    while let Some(folder) = folders.pop() {
        // Tests of the system's own threads may use any of them.
        for entry in std::fs::read_dir(&folder).expect("a crate's source") {
            let path = entry.expect("an entry").path();
            if path.ends_with("tests.rs") || path.ends_with("tests") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.to_string_lossy().replace('\\', "/");
            if apart.iter().any(|part| name.contains(part)) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("source text");
            let text = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
            for what in elsewhere.iter().filter(|what| text.contains(**what)) {
                wrong.push(format!("{name}: {what}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
