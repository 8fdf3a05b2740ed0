//! Reads callgrind's output: the functions in which the instructions are.

use std::collections::HashMap;

/// A function's instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Function {
    /// The function's name; functions inlined into it count as its own instructions.
    pub name: String,
    /// Its own instructions.
    pub own: u64,
    /// Its own instructions and those of its callees. Too many for a recursive function.
    pub with_callees: u64,
}

/// The functions in an output file of callgrind (positions are lines, one event), ordered by own
/// instructions.
pub fn functions(text: &str) -> Vec<Function> {
    let mut names: HashMap<&str, &str> = HashMap::new();
    let mut costs: HashMap<&str, (u64, u64)> = HashMap::new();
    let mut current = "";
    let mut is_call = false;
    for line in text.lines() {
        if let Some(function) = line.strip_prefix("fn=") {
            current = function.split(' ').next().unwrap_or_default();
            learn(&mut names, function);
        } else if let Some(function) = line.strip_prefix("cfn=") {
            learn(&mut names, function);
        } else if line.starts_with("calls=") {
            is_call = true;
        } else if line.starts_with(|first: char| first.is_ascii_digit() || "+-*".contains(first)) {
            let count = line.split(' ').nth(1).and_then(|count| count.parse().ok());
            let (own, with_callees) = costs.entry(current).or_default();
            let count: u64 = count.unwrap_or(0);
            *own += if is_call { 0 } else { count };
            *with_callees += count;
            is_call = false;
        }
    }
    let mut functions: Vec<_> = costs
        .into_iter()
        .map(|(id, (own, with_callees))| Function {
            name: names.get(id).copied().unwrap_or(id).to_owned(),
            own,
            with_callees,
        })
        .collect();
    functions.sort_by(|a, b| b.own.cmp(&a.own).then_with(|| a.name.cmp(&b.name)));
    functions
}

/// The first use of a number gives its name: `(7) name`, later `(7)`.
fn learn<'t>(names: &mut HashMap<&'t str, &'t str>, function: &'t str) {
    if let Some((id, name)) = function.split_once(' ') {
        names.insert(id, name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_of_callees_are_not_a_functions_own() {
        let text = "positions: line\nevents: Ir\n\nfl=(1) a.rs\nfn=(1) outer\n10 5\nfi=(2) b.rs\n+3 7\ncfn=(2) inner\n\
                    calls=2 20\n* 100\n\nfn=(2)\n20 60\n* 40\n\nfn=(1)\n11 1\n";
        let function = |name: &str, own, with_callees| Function {
            name: name.into(),
            own,
            with_callees,
        };
        let expected = [function("inner", 100, 100), function("outer", 13, 113)];
        assert_eq!(functions(text), expected);
    }
}
