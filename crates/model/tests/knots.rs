//! No knots: files of a crate that import each other, round in a circle, stay few.
//!
//! An arrow leads from a file to each file that it names by a path from `crate::` or `super::`.
//! Code of tests is left out. A name that a module re-exports leads to the file that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// How many files may form a cycle.
const FILES_MAX: usize = 3;
/// The folders of the engine, lowest first. A file names files of its own folder and of lower ones.
const FOLDERS: [&str; 19] = [
    "types",
    "metrics",
    "log_record",
    "planning",
    "pacing",
    "run",
    "engine",
    "disk_space",
    "keyspaces",
    "read",
    "memory",
    "write",
    "transaction",
    "checkpoint",
    "figures",
    "api",
    "open",
    "backup",
    "salvage",
];
/// Test doubles may name anything.
const DOUBLES: &str = "testing";

/// One file of a crate: its module path, and its text without comments, strings and tests.
struct Module {
    path: Vec<String>,
    text: String,
}

/// All files of a crate, by name within its `src`.
struct Source {
    modules: BTreeMap<String, Module>,
}

impl Source {
    fn read(src: &Path) -> Source {
        let mut modules = BTreeMap::new();
        let mut folders = vec![src.to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a crate's source") {
                let path: PathBuf = entry.expect("an entry").path();
                let name = path.strip_prefix(src).expect("below src").to_string_lossy();
                let is_test = path.ends_with("tests.rs") || path.ends_with("tests");
                if is_test || name == "main.rs" {
                    continue;
                }
                if path.is_dir() {
                    folders.push(path);
                } else if let Some(stem) = name.strip_suffix(".rs") {
                    let mut parts: Vec<String> = stem.split('/').map(str::to_owned).collect();
                    if parts
                        .last()
                        .is_some_and(|last| last == "mod" || last == "lib")
                    {
                        parts.pop();
                    }
                    let text = std::fs::read_to_string(&path).expect("source text");
                    let text = code(&text);
                    modules.insert(name.to_string(), Module { path: parts, text });
                }
            }
        }
        Source { modules }
    }

    /// The file of the deepest module that a path leads into, and how much of the path that is.
    fn file_of(&self, path: &[String]) -> Option<(&str, usize)> {
        (0..=path.len()).rev().find_map(|length| {
            let modules = self.modules.iter();
            let mut found = modules.filter(|(_, module)| module.path == path[..length]);
            found.next().map(|(name, _)| (name.as_str(), length))
        })
    }

    /// The file that defines what a path names: re-exports are followed.
    fn definition(&self, path: &[String], depth: usize) -> Option<&str> {
        let (file, length) = self.file_of(path)?;
        let name = match path.get(length) {
            Some(name) if depth < 8 => name,
            _ => return Some(file),
        };
        for used in uses(&self.modules[file].text, "pub use ")
            .into_iter()
            .chain(uses(&self.modules[file].text, "pub(crate) use "))
            .chain(uses(&self.modules[file].text, "pub(super) use "))
        {
            if used.last() == Some(name) {
                let mut full = match used[0].as_str() {
                    "crate" => used[1..].to_vec(),
                    "self" => [&self.modules[file].path[..], &used[1..]].concat(),
                    _ => [&self.modules[file].path[..], &used[..]].concat(),
                };
                if full == path {
                    continue;
                }
                full.extend_from_slice(&path[length + 1..]);
                if self
                    .file_of(&full)
                    .is_some_and(|(_, reached)| reached > length)
                {
                    return self.definition(&full, depth + 1);
                }
            }
        }
        Some(file)
    }

    /// The arrows between files.
    fn arrows(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let mut arrows = BTreeMap::new();
        for (name, module) in &self.modules {
            let mut to = BTreeSet::new();
            for path in paths(&module.text) {
                let full = match absolute(&path, &module.path) {
                    Some(full) => full,
                    None => continue,
                };
                if let Some(file) = self.definition(&full, 0).filter(|file| file != name) {
                    to.insert(file);
                }
            }
            arrows.insert(name.as_str(), to);
        }
        arrows
    }

    /// The largest set of files of which each leads to each.
    fn largest_knot(&self) -> (Vec<String>, Vec<String>) {
        let arrows = self.arrows();
        let reach = |from: &str| {
            let mut seen = BTreeSet::new();
            let mut left: Vec<&str> = vec![from];
            while let Some(file) = left.pop() {
                for &next in &arrows[file] {
                    if seen.insert(next) {
                        left.push(next);
                    }
                }
            }
            seen
        };
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            arrows.keys().map(|&file| (file, reach(file))).collect();
        let knot_of = |file: &&str| {
            let both = reached[file].iter();
            let both = both.filter(|other| reached[*other].contains(file));
            both.copied().collect::<Vec<&str>>()
        };
        let knot = arrows.keys().map(knot_of).max_by_key(Vec::len);
        let knot = knot.unwrap_or_default();
        let inside = knot.iter().flat_map(|file| {
            let to = arrows[file].iter().filter(|to| knot.contains(to));
            to.map(move |to| format!("  {file} → {to}"))
        });
        let names = knot.iter().map(|file| (*file).to_owned()).collect();
        (names, inside.collect())
    }
}

/// A path from the crate's root, without `crate`; none if it is of another crate.
fn absolute(path: &[String], at: &[String]) -> Option<Vec<String>> {
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => {
            let ups = path.iter().take_while(|part| *part == "super").count();
            let above = at.len().checked_sub(ups)?;
            Some([&at[..above], &path[ups..]].concat())
        }
        _ => None,
    }
}

/// The text without comments, strings, characters and what is compiled for tests only.
fn code(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if rest.starts_with("//") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]);
        } else if rest.starts_with("/*") {
            rest = rest.find("*/").map_or("", |end| &rest[end + 2..]);
        } else if rest.starts_with("r#\"") {
            rest = rest[3..].find("\"#").map_or("", |end| &rest[3 + end + 2..]);
        } else if c == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            rest = end.map_or("", |end| &rest[end + 2..]);
        } else if rest.starts_with("'\"'") || rest.starts_with("'{'") || rest.starts_with("'}'") {
            rest = &rest[3..];
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    without_tests(&out)
}

fn without_tests(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest
        .find("#[cfg(test)]")
        .or_else(|| rest.find("#[cfg(any(test"))
    {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let (brace, semicolon) = (item.find('{'), item.find(';'));
        let end = match (brace, semicolon) {
            (Some(brace), semicolon) if semicolon.is_none_or(|s| brace < s) => {
                let mut depth = 0;
                let closed = item[brace..].char_indices().find(|(_, c)| {
                    depth += i32::from(*c == '{') - i32::from(*c == '}');
                    depth == 0
                });
                closed.map_or(item.len(), |(end, _)| brace + end + 1)
            }
            (_, Some(semicolon)) => semicolon + 1,
            (_, None) => item.len(),
        };
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

/// Every path that begins with `crate::` or `super::`; trees of `use` are spread out.
fn paths(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for start in ["crate::", "super::"] {
        for (at, _) in text.match_indices(start) {
            let before = text[..at].chars().next_back().unwrap_or(' ');
            let inside = before == ':' || before.is_alphanumeric() || before == '_';
            if !inside {
                spread(&text[at..], &[], &mut found);
            }
        }
    }
    found
}

/// What `use` declarations with a visibility name.
fn uses(text: &str, keyword: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices(keyword) {
        spread(&text[at + keyword.len()..], &[], &mut found);
    }
    found
}

/// Reads one path or tree of paths; returns how many bytes it took.
fn spread(text: &str, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    let mut at = 0;
    loop {
        at += text[at..].len() - text[at..].trim_start().len();
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            loop {
                at += spread(&text[at..], &path, found);
                at += text[at..].len() - text[at..].trim_start().len();
                if text[at..].starts_with(',') {
                    at += 1;
                } else {
                    return (at + 1).min(text.len());
                }
            }
        }
        let length = rest
            .find(|c: char| !c.is_alphanumeric() && c != '_')
            .unwrap_or(rest.len());
        if length == 0 {
            return at;
        }
        path.push(rest[..length].to_owned());
        at += length;
        if text[at..].starts_with("::") {
            at += 2;
        } else {
            if path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            found.push(path);
            return at;
        }
    }
}

#[test]
fn few_files_of_a_crate_form_a_cycle() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut wrong = Vec::new();
    let mut names: Vec<_> = std::fs::read_dir(&crates)
        .expect("the crates")
        .map(|entry| entry.expect("a crate").file_name())
        .collect();
    names.sort();
    for name in names {
        let name = name.to_string_lossy();
        let source = Source::read(&crates.join(&*name).join("src"));
        let (files, arrows) = source.largest_knot();
        println!("{name}: {} of {} files", files.len(), source.modules.len());
        if files.len() > FILES_MAX {
            let arrows = arrows.join("\n");
            wrong.push(format!(
                "{name}: {} files form a cycle:\n{arrows}",
                files.len()
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn arrows_between_folders_of_the_engine_lead_down() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let source = Source::read(&crates.join("terrapin/src"));
    let height = |file: &str| {
        let (folder, _) = file.split_once('/')?;
        let height = FOLDERS.iter().position(|name| *name == folder);
        assert!(
            height.is_some() || folder == DOUBLES,
            "{folder} has no place among FOLDERS: say which folders it may name"
        );
        height
    };
    let mut wrong = Vec::new();
    for (from, to) in source.arrows() {
        for to in to {
            if let (Some(lower), Some(upper)) = (height(from), height(to))
                && lower < upper
            {
                wrong.push(format!("{from} names {to}, of a higher folder"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn paths_are_read_out_of_code_and_not_out_of_comments_strings_and_tests() {
    let text = code(
        "use crate::a::{B, c::{self, D as E}};\n// crate::no\nlet x = \"crate::no\";\n\
         fn f() -> super::G { crate::h::i() }\n#[cfg(test)]\nmod tests { use super::*; }\n\
         fn g(c: char) -> bool { c == '\"' && other::crate_::no }",
    );
    let found: BTreeSet<String> = paths(&text).iter().map(|p| p.join("::")).collect();
    let expected = [
        "crate::a::B",
        "crate::a::c",
        "crate::a::c::D",
        "crate::h::i",
        "super::G",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
}
