//! Records like those of a package registry: a name, and a few lines of JSON.

use terrapin_bench::Random;

const ADJECTIVES: [&str; 24] = [
    "async", "tiny", "fast", "simple", "safe", "smart", "lazy", "pure", "micro", "deep", "flat",
    "open", "quick", "strict", "static", "dynamic", "modern", "classic", "hyper", "nano", "better",
    "easy", "super", "light",
];
const NOUNS: [&str; 32] = [
    "router", "parser", "cache", "logger", "stream", "queue", "store", "client", "server",
    "worker", "config", "schema", "table", "graph", "buffer", "socket", "token", "color", "date",
    "event", "state", "theme", "plugin", "loader", "runner", "editor", "widget", "button", "lexer",
    "crypto", "mailer", "scraper",
];
const SCOPES: [&str; 12] = [
    "acme",
    "northwind",
    "blueleaf",
    "kitsune",
    "harbor",
    "octane",
    "mosaic",
    "lumen",
    "papercut",
    "riverbed",
    "tern",
    "zephyr",
];
const LICENSES: [&str; 5] = ["MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "MPL-2.0"];

fn pick<'a>(random: &mut Random, words: &[&'a str]) -> &'a str {
    words[random.below(words.len() as u64) as usize]
}

/// The name of package `number`; no two are the same.
pub fn name(number: u64) -> String {
    let mut random = Random::new(number);
    let (adjective, noun) = (pick(&mut random, &ADJECTIVES), pick(&mut random, &NOUNS));
    match random.below(4) {
        0 => format!(
            "@{}/{adjective}-{noun}-{number}",
            pick(&mut random, &SCOPES)
        ),
        1 => format!("{noun}-{adjective}-{number}"),
        _ => format!("{adjective}-{noun}-{number}"),
    }
}

/// The registry's entry of a package in a revision.
pub fn record(name: &str, revision: u64) -> String {
    let mut random = Random::new(terrapin_base::checksum::hash64(name.as_bytes()) ^ revision);
    let owner = pick(&mut random, &SCOPES);
    let words: Vec<&str> = (0..4 + random.below(8))
        .map(|_| pick(&mut random, &NOUNS))
        .collect();
    format!(
        "{{\"version\":\"{}.{}.{revision}\",\"license\":\"{}\",\"repository\":\"https://git.example/{owner}/{name}\",\
         \"downloads\":{},\"keywords\":\"{}\"}}",
        random.below(12),
        random.below(40),
        pick(&mut random, &LICENSES),
        random.below(1_000_000),
        words.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_differ_and_records_are_json_that_a_seed_repeats() {
        let names: std::collections::HashSet<_> = (0..10_000).map(name).collect();
        assert_eq!(names.len(), 10_000);
        let text = record(&name(7), 3);
        assert_eq!(text, record(&name(7), 3));
        assert_ne!(text, record(&name(7), 4));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value["version"].as_str().unwrap().ends_with(".3"));
    }
}
