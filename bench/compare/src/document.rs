//! Tables of rates in a Markdown document, generated from `summary.json` files.
//!
//! The document marks a table's place: `<!-- rates SIZE CELL -->` before it and `<!-- end -->`
//! behind it. The text between the marks is replaced; the rest stays.

use std::path::Path;

use terrapin_base::{Error, Result};

use crate::summary::Summary;
use crate::table;

const BEGIN: &str = "<!-- rates ";
const BEGIN_END: &str = " -->";
const END: &str = "<!-- end -->";

/// Reads summaries. The later of two for one cell and size counts.
pub fn summaries(files: &[impl AsRef<Path>]) -> Result<Vec<Summary>> {
    let mut all: Vec<Summary> = Vec::new();
    for file in files {
        let file = file.as_ref();
        let text = std::fs::read_to_string(file)
            .map_err(|e| Error::io("cannot read the summary", e).with("file", file.display()))?;
        let found: Vec<Summary> = serde_json::from_str(&text).map_err(|e| {
            Error::invalid(format!("not a summary: {e}")).with("file", file.display())
        })?;
        for summary in found {
            all.retain(|s| (s.size, &s.cell) != (summary.size, &summary.cell));
            all.push(summary);
        }
    }
    Ok(all)
}

/// The document with new tables. Errors: a mark without an end, or for a cell that no summary has.
pub fn filled(document: &str, summaries: &[Summary]) -> Result<String> {
    let mut text = String::new();
    let mut rest = document;
    while let Some(begin) = rest.find(BEGIN) {
        let mark = begin + BEGIN.len();
        let unclosed = || Error::invalid("a mark of a table has no end");
        let length = rest[mark..].find(BEGIN_END).ok_or_else(unclosed)?;
        let name = &rest[mark..mark + length];
        let behind = mark + length + BEGIN_END.len();
        let end = rest[behind..].find(END).ok_or_else(unclosed)? + behind;
        let is_named = |s: &&Summary| format!("{} {}", s.size.name(), s.cell) == name;
        let summary = summaries.iter().find(is_named);
        let summary = summary.ok_or_else(|| {
            Error::invalid("no summary has the cell of a mark").with("mark", name)
        })?;
        text.push_str(&rest[..behind]);
        text.push('\n');
        text.push_str(&table::rates_by_engine(summary));
        text.push_str(&table::against_the_logged(summary));
        rest = &rest[end..];
        text.push_str(END);
        rest = &rest[END.len()..];
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str =
        "before\n\n<!-- rates tiny 128-third-2 -->\nold\n<!-- end -->\n\nafter\n";

    fn summary() -> Summary {
        serde_json::from_str(
            r#"{"size": "tiny", "cell": "128-third-2", "title": "t", "records": 1, "data_bytes": 1,
                "memory_bytes": 1, "notes": [], "began": 0, "ended": 0, "contenders": [],
                "phases": ["load"]}"#,
        )
        .unwrap()
    }

    #[test]
    fn only_tables_between_marks_are_replaced() {
        let filled = filled(DOCUMENT, &[summary()]).unwrap();
        assert!(
            filled.starts_with("before\n\n<!-- rates tiny 128-third-2 -->\n| engine | load |\n")
        );
        assert!(filled.ends_with("<!-- end -->\n\nafter\n") && !filled.contains("old"));
        assert_eq!(super::filled(&filled, &[summary()]).unwrap(), filled);
    }

    #[test]
    fn unknown_marks_are_errors() {
        let open = DOCUMENT.replace("<!-- end -->", "");
        assert!(filled(&open, &[summary()]).is_err());
        let other = DOCUMENT.replace("128-third-2", "128-all-1");
        let error = filled(&other, &[summary()]).unwrap_err();
        assert!(error.to_string().contains("128-all-1"), "{error}");
    }

    /// The tables of the page are those of the results beside it.
    #[test]
    fn the_benchmarks_page_equals_the_results() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
        let files =
            ["full", "one-client"].map(|d| docs.join("benchmarks").join(d).join("summary.json"));
        let page = std::fs::read_to_string(docs.join("BENCHMARKS.md")).unwrap();
        assert_eq!(page.matches(BEGIN).count(), 8);
        assert!(
            filled(&page, &summaries(&files).unwrap()).unwrap() == page,
            "run `compare document`"
        );
    }
}
