//! Every dependency has a permissive licence. The test also works where `cargo deny` is not
//! installed.

use std::env::consts::ARCH;
use std::process::Command;

use serde_json::Value;

/// The same list as in `deny.toml`.
const ALLOWED: [&str; 10] = [
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether allowed licences satisfy an expression. `/` is an older way to write OR.
fn is_allowed(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ");
    let all_of = |all: &str| {
        let mut parts = all.split(" AND ");
        parts.all(|part| ALLOWED.contains(&part.trim_matches(['(', ')', ' '])))
    };
    // `(A OR B) AND C`: each bracket is one choice.
    if let Some((choice, rest)) = expression
        .strip_prefix('(')
        .and_then(|e| e.split_once(") AND "))
    {
        return is_allowed(choice) && is_allowed(rest);
    }
    expression.split(" OR ").any(all_of)
}

#[test]
fn every_dependency_has_a_permissive_licence() {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline", "--locked"])
        // Dependencies for other systems are not downloaded here.
        .args(["--filter-platform", &format!("{ARCH}-unknown-linux-gnu")])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo metadata runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let metadata: Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    assert!(packages.len() > 20, "{}", packages.len());
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !package["license"].as_str().is_some_and(is_allowed))
        .map(|package| format!("{}: {}", package["name"], package["license"]))
        .collect();
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn licence_expressions_are_parsed_as_meant() {
    for allowed in [
        "MIT",
        "MIT OR GPL-3.0",
        "MIT/Apache-2.0",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT",
        "MIT AND ISC",
    ] {
        assert!(is_allowed(allowed), "{allowed}");
    }
    for refused in [
        "GPL-3.0",
        "MIT AND GPL-3.0",
        "(GPL-3.0 OR AGPL-3.0) AND MIT",
        "",
    ] {
        assert!(!is_allowed(refused), "{refused}");
    }
}
