//! The text of the repository stays readable: comments and Markdown have at most 100 columns, pages
//! have a limit of lines, and no page cites a paper that is not in the repository.
//!
//! Columns are characters, not bytes. Each failure prints `file:line`.

use std::path::{Path, PathBuf};

/// How many characters a line of a comment or of Markdown may have.
const COLUMNS_MAX: usize = 100;
/// A decision fits on one page.
const DECISION_LINES_MAX: usize = 60;
/// The benchmarks' page holds results, not their history.
const BENCHMARKS_LINES_MAX: usize = 250;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The repository's files with one of these extensions: path below the root, and text.
fn files(extensions: &[&str]) -> Vec<(String, String)> {
    let root = root();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the repository") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            // Build output, and what git and editors keep for themselves.
            if name.starts_with('.') || name.starts_with("target") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if extensions
                .iter()
                .any(|e| path.extension() == Some(e.as_ref()))
            {
                let below = path.strip_prefix(&root).expect("below the root");
                let text = std::fs::read_to_string(&path).expect("source text");
                found.push((below.to_string_lossy().replace('\\', "/"), text));
            }
        }
    }
    found.sort();
    assert!(found.len() > 20, "the walk found only {}", found.len());
    found
}

/// The prose of a file, line by line: all of a Markdown file, the comments of a Rust file. `None`
/// stands for a line that is no prose, which ends a fenced block.
fn prose<'a>(name: &str, text: &'a str) -> Vec<Option<&'a str>> {
    let rust = name.ends_with(".rs");
    let lines = text.lines().map(|line| {
        let line = line.trim_start();
        match (rust, line.strip_prefix("//")) {
            (true, Some(comment)) => Some(comment.trim_start_matches(['/', '!']).trim_start()),
            (true, None) => None,
            (false, _) => Some(line),
        }
    });
    lines.collect()
}

/// Whether no space of a line is one where it could be broken: a URL, a link's target, or a code
/// span, alone or after a list's marker.
fn is_unbreakable(line: &str) -> bool {
    let line = line.trim_start_matches(['-', '*', '(', ' ']);
    let outside_code: String = line.split('`').step_by(2).collect();
    let is_link_target = line.starts_with('[') && line.contains("]: ");
    is_link_target || !outside_code.trim().contains(' ')
}

#[test]
fn comments_and_markdown_have_at_most_100_columns() {
    let mut wide = Vec::new();
    for (name, text) in files(&["rs", "md"]) {
        let mut is_fenced = false;
        for (number, (line, prose)) in text.lines().zip(prose(&name, &text)).enumerate() {
            let Some(prose) = prose else {
                is_fenced = false;
                continue;
            };
            if prose.starts_with("```") {
                is_fenced = !is_fenced;
            }
            let columns = line.chars().count();
            let is_table = prose.starts_with('|');
            if columns > COLUMNS_MAX && !is_fenced && !is_table && !is_unbreakable(prose) {
                wide.push(format!("{name}:{}: {columns} columns", number + 1));
            }
        }
    }
    assert!(
        wide.is_empty(),
        "{} lines are wider than {COLUMNS_MAX} columns:\n{}",
        wide.len(),
        wide.join("\n")
    );
}

#[test]
fn pages_keep_to_their_length() {
    let mut long = Vec::new();
    for (name, text) in files(&["md"]) {
        let lines_max = match name.as_str() {
            "docs/BENCHMARKS.md" => BENCHMARKS_LINES_MAX,
            "docs/decisions/README.md" => continue,
            decision if decision.starts_with("docs/decisions/") => DECISION_LINES_MAX,
            _ => continue,
        };
        let lines = text.lines().count();
        if lines > lines_max {
            long.push(format!("{name}: {lines} lines, {lines_max} at most"));
        }
    }
    assert!(long.is_empty(), "pages too long:\n{}", long.join("\n"));
}

#[test]
fn each_decision_says_its_status_and_stands_in_the_index() {
    let index = root().join("docs/decisions/README.md");
    let index = std::fs::read_to_string(index).expect("the index of decisions");
    let mut wrong = Vec::new();
    for (name, text) in files(&["md"]) {
        let Some(file) = name.strip_prefix("docs/decisions/") else {
            continue;
        };
        if file == "README.md" {
            continue;
        }
        if !text.lines().any(|line| line.starts_with("Status: ")) {
            wrong.push(format!("{name}: no line begins with `Status: `"));
        }
        if !index.contains(&format!("({file})")) {
            wrong.push(format!(
                "{name}: docs/decisions/README.md has no link to it"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_between_pages_lead_to_files() {
    let mut broken = Vec::new();
    for (name, text) in files(&["md"]) {
        let folder = root().join(&name);
        let folder = folder.parent().expect("a file lies in a folder");
        let mut is_fenced = false;
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("```") {
                is_fenced = !is_fenced;
            }
            let outside_code: String = line.split('`').step_by(2).collect();
            for target in outside_code.split("](").skip(1) {
                let target = target.split([')', '#', ' ']).next().unwrap_or_default();
                let is_local = !target.is_empty() && !target.contains("://");
                if is_local && !is_fenced && !folder.join(target).exists() {
                    broken.push(format!("{name}:{}: {target}", number + 1));
                }
            }
        }
    }
    assert!(broken.is_empty(), "broken links:\n{}", broken.join("\n"));
}

/// Full paths from a crate's folder, as the map and the recipes name them.
#[test]
fn the_map_names_files_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/ARCHITECTURE.md")).expect("the map");
    let mut missing = Vec::new();
    for path in text.split('`').skip(1).step_by(2) {
        let is_path = path.contains("/src/") && !path.contains(' ');
        if is_path && !root().join("crates").join(path).exists() {
            missing.push(path);
        }
    }
    assert!(
        missing.is_empty(),
        "docs/ARCHITECTURE.md names files that are not there:\n{}",
        missing.join("\n")
    );
}

/// The design papers are not in the repository, so a reader cannot follow a citation.
#[test]
fn no_text_cites_the_design_papers() {
    let citation = concat!("DESIGN", " §");
    let mut citing = Vec::new();
    for (name, text) in files(&["rs", "md", "toml"]) {
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| line.contains(citation));
        citing.extend(lines.map(|(number, _)| format!("{name}:{}", number + 1)));
    }
    assert!(
        citing.is_empty(),
        "say the fact, or cite a page of docs/:\n{}",
        citing.join("\n")
    );
}

/// DURABILITY names the tests of each invariant in italics; `…` stands for the rest of a name.
#[test]
fn durability_names_tests_that_exist() {
    let text = std::fs::read_to_string(root().join("docs/DURABILITY.md")).expect("the page");
    let sources = files(&["rs"]);
    let mut missing = Vec::new();
    for row in text.lines().filter(|line| line.starts_with('|')) {
        let outside_code: String = row.split('`').step_by(2).collect();
        for name in outside_code.split('*').skip(1).step_by(2) {
            let (name, end) = match name.strip_suffix('…') {
                Some(beginning) => (beginning, ""),
                None => (name, "("),
            };
            let function = format!("fn {}{end}", name.replace(',', "").replace([' ', '-'], "_"));
            let is_there = sources.iter().any(|(_, text)| text.contains(&function));
            if !name.is_empty() && !is_there {
                missing.push(name.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "no test has these names: {missing:?}");
}
