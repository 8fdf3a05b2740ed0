//! The language of scripts: one operation a line, with the answer that is expected. See
//! `scripts/README.md` for the whole of it.
//!
//! ```text
//! # Deletes hide what lies below.
//! put apple 1
//! delete apple sync
//! get apple -> none
//! for 0..500 shuffled 7 put k{} v{}@100
//! range from k000498 -> k000498=v000498@100 k000499=v000499@100
//! ```

use std::ops::Bound;

use terrapin_base::{Error, Result};

use crate::conditional::Conditional;
use crate::operation::{
    Answer, Change, Durability, Operation, Read, Record, Reopen, Span, Walk, What,
};
use crate::pattern::{Pattern, is_bare};
use crate::random::Random;
use crate::step::TxStep;

/// The most operations of one `for` line.
const LOOP_MAX: u64 = 1_000_000;

/// A script: its name, its needs, and its lines.
#[derive(Clone, Debug)]
pub struct Script {
    /// The name in errors.
    pub name: String,
    /// Key and value bytes of its largest write.
    pub record_bytes: usize,
    /// The operations.
    pub steps: Vec<Step>,
}

/// One operation of a script.
#[derive(Clone, Debug)]
pub struct Step {
    /// The line's number, from 1.
    pub line: usize,
    /// The operation.
    pub operation: Operation,
    /// The expected answer; none leaves it to the oracle.
    pub expected: Option<Expected>,
}

/// An expected answer.
#[derive(Clone, Debug)]
pub enum Expected {
    /// Exactly this.
    Exactly(Answer),
    /// An error of the kind of this name.
    Failed(String),
    /// This many records.
    Records(usize),
    /// A count within a tenth, plus ten, of this.
    About(u64),
}

impl Expected {
    /// Whether an answer is as expected.
    #[must_use]
    pub fn allows(&self, answer: &Answer) -> bool {
        match (self, answer) {
            (Expected::Exactly(expected), answer) => answer.agrees(expected),
            (Expected::Failed(name), Answer::Failed(kind, _)) => format!("{kind:?}") == *name,
            (Expected::Records(count), Answer::Records(records)) => records.len() == *count,
            (Expected::About(count), Answer::About(got)) => got.abs_diff(*count) <= count / 10 + 10,
            _ => false,
        }
    }
}

impl Script {
    /// Reads a script. An error names the line.
    pub fn parse(name: &str, text: &str) -> Result<Script> {
        let mut script = Script {
            name: name.to_owned(),
            record_bytes: 0,
            steps: Vec::new(),
        };
        for (index, line) in text.lines().enumerate() {
            let at = |e: Error| e.with("script", name).with("line", index + 1);
            for operation in expand(line).map_err(at)? {
                let step = parse_line(&operation).map_err(at)?;
                let Some((operation, expected)) = step else {
                    continue;
                };
                script.record_bytes = script.record_bytes.max(record_bytes(&operation));
                script.steps.push(Step {
                    line: index + 1,
                    operation,
                    expected,
                });
            }
        }
        Ok(script)
    }
}

/// Key and value bytes of an operation's writes, if the store should accept them.
fn record_bytes(operation: &Operation) -> usize {
    match operation {
        Operation::Put { key, value, .. }
            if key.len() <= terrapin_base::KEY_BYTES_MAX
                && value.len() <= terrapin_base::VALUE_BYTES_MAX =>
        {
            key.len() + value.len()
        }
        Operation::Merge { key, operand, .. } => key.len() + operand.len(),
        Operation::Conditional { how, .. } => match how {
            Conditional::Insert(key, value)
            | Conditional::Replace(key, value)
            | Conditional::Update(key, value) => key.len() + value.len(),
            Conditional::Swap { key, new, .. } => key.len() + new.as_ref().map_or(0, Pattern::len),
            Conditional::Take(_) | Conditional::Pop { .. } => 0,
        },
        Operation::Transact { steps, .. } => {
            let changes = steps.iter().filter_map(TxStep::change);
            changes.map(Change::bytes).sum()
        }
        Operation::Ingest { records, .. } => {
            let bytes = records.iter().map(|(key, value)| key.len() + value.len());
            bytes.max().unwrap_or(0)
        }
        Operation::Batch { changes, .. } | Operation::Guarded { changes, .. } => {
            changes.iter().map(Change::bytes).sum()
        }
        _ => 0,
    }
}

/// A loop becomes its lines; any other line stays.
fn expand(line: &str) -> Result<Vec<String>> {
    let Some(rest) = line.trim().strip_prefix("for ") else {
        return Ok(vec![line.to_owned()]);
    };
    let bad = || Error::invalid("a loop reads: for A..B [by N] [shuffled SEED] [joined] OPERATION");
    let (range, mut rest) = rest.trim_start().split_once(' ').ok_or_else(bad)?;
    let (start, end) = range.split_once("..").ok_or_else(bad)?;
    let number = |text: &str| text.parse::<u64>().map_err(|_| bad());
    let (start, end) = (number(start)?, number(end)?);
    if end.saturating_sub(start) > LOOP_MAX {
        return Err(Error::invalid("a loop is too long").with("most", LOOP_MAX));
    }
    let (mut by, mut seed, mut is_joined) = (1, None, false);
    loop {
        let (word, after) = rest.trim_start().split_once(' ').ok_or_else(bad)?;
        if word == "joined" {
            (is_joined, rest) = (true, after);
            continue;
        }
        if word != "by" && word != "shuffled" {
            break;
        }
        let (argument, after) = after.trim_start().split_once(' ').ok_or_else(bad)?;
        match word {
            "by" => by = number(argument)?.max(1),
            _ => seed = Some(number(argument)?),
        }
        rest = after;
    }
    let numbers: Vec<u64> = (start..end)
        .step_by(usize::try_from(by).unwrap_or(usize::MAX))
        .collect();
    let order = match seed {
        None => (0..numbers.len()).collect(),
        Some(seed) => Random::new(seed).shuffled(numbers.len()),
    };
    let replaced = |text: &str, i: usize| text.replace("{}", &format!("{:06}", numbers[i]));
    if !is_joined {
        return Ok(order.into_iter().map(|i| replaced(rest, i)).collect());
    }
    // One operation, whose arguments are those of all numbers.
    let (body, answer) = match rest.split_once(" ->") {
        Some((body, answer)) => (body, format!(" ->{answer}")),
        None => (rest, String::new()),
    };
    let words = body.split_inclusive(' ');
    let place = words.clone().take_while(|word| word.starts_with('@'));
    let head: usize = words.take(place.count() + 1).map(str::len).sum();
    let (head, arguments) = body.split_at(head);
    let all: Vec<_> = order.into_iter().map(|i| replaced(arguments, i)).collect();
    Ok(vec![format!("{head}{}{answer}", all.join(" ; "))])
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word; `quoted` words are never keywords.
    Word {
        text: String,
        pattern: Pattern,
    },
    Symbol(char),
    Arrow,
    Keyspace(String),
    Snapshot(String),
}

fn tokens(line: &str) -> Result<Vec<Token>> {
    let bytes = line.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b' ' | b'\t' | b'\r' => at += 1,
            b'#' => break,
            b'-' if bytes.get(at + 1) == Some(&b'>') => {
                out.push(Token::Arrow);
                at += 2;
            }
            b';' | b'=' => {
                out.push(Token::Symbol(byte as char));
                at += 1;
            }
            b'@' | b'%' => {
                let name = bare(bytes, at + 1);
                at += 1 + name.len();
                out.push(if byte == b'@' {
                    Token::Keyspace(name)
                } else {
                    Token::Snapshot(name)
                });
            }
            _ => {
                let (token, end) = word(bytes, at)?;
                out.push(token);
                at = end;
            }
        }
    }
    Ok(out)
}

fn bare(bytes: &[u8], start: usize) -> String {
    let text = bytes[start..].iter().take_while(|b| is_bare(**b));
    text.map(|b| *b as char).collect()
}

/// A word from `start` on, with its length behind an `@`, and where it ends.
fn word(bytes: &[u8], start: usize) -> Result<(Token, usize)> {
    let noise = bytes[start] == b'~';
    let mut at = start + usize::from(noise);
    let (text, literal) = if bytes.get(at) == Some(&b'"') {
        let (literal, end) = quoted(bytes, at + 1)?;
        at = end;
        (String::new(), literal)
    } else {
        let text = bare(bytes, at);
        if text.is_empty() {
            return Err(Error::invalid("not a word").with("column", at + 1));
        }
        at += text.len();
        (text.clone(), text.into_bytes())
    };
    let number = |text: &str| {
        text.parse::<usize>()
            .map_err(|_| Error::invalid("not a number").with("text", format!("{text:?}")))
    };
    let mut length = None;
    if bytes.get(at) == Some(&b'@') {
        let digits = bare(bytes, at + 1);
        at += 1 + digits.len();
        length = Some(number(&digits)?);
    }
    let pattern = match (noise, length) {
        (true, Some(bytes)) => Pattern::Noise(number(&text)? as u64, bytes),
        (true, None) => return Err(Error::invalid("noise reads ~SEED@BYTES")),
        (false, Some(bytes)) => Pattern::Repeated(literal, bytes),
        (false, None) => Pattern::Literal(literal),
    };
    Ok((Token::Word { text, pattern }, at))
}

fn quoted(bytes: &[u8], start: usize) -> Result<(Vec<u8>, usize)> {
    let mut out = Vec::new();
    let mut at = start;
    loop {
        let escape = |offset: usize| bytes.get(at + offset).map(|b| *b as char);
        match escape(0) {
            None => return Err(Error::invalid("a quote does not end")),
            Some('"') => return Ok((out, at + 1)),
            Some('\\') => {
                let bad = || Error::invalid("escapes are \\\\ \\\" \\n \\t \\xNN");
                let (byte, taken) = match escape(1) {
                    Some('n') => (b'\n', 2),
                    Some('t') => (b'\t', 2),
                    Some(same @ ('\\' | '"')) => (same as u8, 2),
                    Some('x') => {
                        let digit =
                            |c: Option<char>| c.and_then(|c| c.to_digit(16)).ok_or_else(bad);
                        ((digit(escape(2))? * 16 + digit(escape(3))?) as u8, 4)
                    }
                    _ => return Err(bad()),
                };
                out.push(byte);
                at += taken;
            }
            Some(_) => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
}

/// The tokens of a line, taken one by one.
struct Line {
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
}

impl Line {
    fn pattern(&mut self, what: &'static str) -> Result<Pattern> {
        match self.tokens.next() {
            Some(Token::Word { pattern, .. }) => Ok(pattern),
            _ => Err(Error::invalid("a word is missing").with("expected", what)),
        }
    }

    fn name(&mut self, what: &'static str) -> Result<String> {
        let bytes = self.pattern(what)?.bytes();
        String::from_utf8(bytes)
            .map_err(|_| Error::invalid("a name is not UTF-8").with("expected", what))
    }

    fn number<N: std::str::FromStr>(&mut self, what: &'static str) -> Result<N> {
        let text = self.name(what)?;
        text.parse().map_err(|_| {
            Error::invalid("not a number")
                .with("expected", what)
                .with("got", text)
        })
    }

    /// Takes the next word if it is this keyword.
    fn takes(&mut self, keyword: &str) -> bool {
        let found = matches!(self.tokens.peek(), Some(Token::Word { text, .. }) if text == keyword);
        if found {
            self.tokens.next();
        }
        found
    }

    fn symbol(&mut self, symbol: char) -> bool {
        let found = self.tokens.peek() == Some(&Token::Symbol(symbol));
        if found {
            self.tokens.next();
        }
        found
    }

    fn has_word(&mut self) -> bool {
        matches!(self.tokens.peek(), Some(Token::Word { .. }))
    }

    fn keyspace(&mut self) -> String {
        match self.tokens.next_if(|t| matches!(t, Token::Keyspace(_))) {
            Some(Token::Keyspace(name)) => name,
            _ => "default".to_owned(),
        }
    }

    fn snapshot(&mut self) -> Option<String> {
        match self.tokens.next_if(|t| matches!(t, Token::Snapshot(_))) {
            Some(Token::Snapshot(name)) => Some(name),
            _ => None,
        }
    }

    fn durability(&mut self) -> Durability {
        use terrapin::Durability as D;
        [
            ("process", D::Process),
            ("sync", D::Sync),
            ("none", D::None),
        ]
        .into_iter()
        .find_map(|(word, durability)| self.takes(word).then_some(durability))
    }

    fn span(&mut self, prefix: bool) -> Result<Span> {
        if prefix {
            return Ok(Span::Prefix(self.pattern("a prefix")?));
        }
        let lower = if self.takes("from") {
            Bound::Included(self.pattern("a key")?)
        } else if self.takes("after") {
            Bound::Excluded(self.pattern("a key")?)
        } else {
            Bound::Unbounded
        };
        let upper = if self.takes("to") {
            Bound::Excluded(self.pattern("a key")?)
        } else if self.takes("through") {
            Bound::Included(self.pattern("a key")?)
        } else {
            Bound::Unbounded
        };
        Ok(Span::Between(lower, upper))
    }

    fn range(&mut self, prefix: bool) -> Result<Read> {
        let span = self.span(prefix)?;
        let walk = if self.takes("reverse") {
            Walk::Backward
        } else if self.takes("ends") {
            Walk::Ends(self.number("a seed")?)
        } else {
            Walk::Forward
        };
        let limit = if self.takes("limit") {
            Some(self.number("a limit")?)
        } else {
            None
        };
        Ok(Read::Range(span, walk, limit))
    }

    /// The span of an erase.
    fn erased(&mut self) -> Result<Span> {
        let prefix = self.takes("prefix");
        if !prefix && !self.takes("range") {
            return Err(Error::invalid("erase range … or erase prefix …"));
        }
        self.span(prefix)
    }

    fn change(&mut self) -> Result<Change> {
        let keyspace = self.keyspace();
        let what = if self.takes("put") {
            What::Put(self.pattern("a key")?, self.pattern("a value")?)
        } else if self.takes("delete") {
            What::Delete(self.pattern("a key")?)
        } else if self.takes("merge") {
            What::Merge(self.pattern("a key")?, self.pattern("an operand")?)
        } else if self.takes("erase") {
            What::Erase(self.erased()?)
        } else {
            return Err(Error::invalid(
                "a batch holds `put KEY VALUE`, `delete KEY`, `merge KEY VALUE` and `erase SPAN`, separated by `;`",
            ));
        };
        Ok(Change { keyspace, what })
    }

    fn changes(&mut self) -> Result<Vec<Change>> {
        let mut changes = Vec::new();
        while self.tokens.peek().is_some_and(|t| *t != Token::Arrow) {
            changes.push(self.change()?);
            if !self.symbol(';') {
                break;
            }
        }
        Ok(changes)
    }

    /// The steps of a transaction.
    fn steps(&mut self) -> Result<Vec<TxStep>> {
        let mut steps = Vec::new();
        while self.tokens.peek().is_some_and(|t| *t != Token::Arrow) {
            steps.push(self.step()?);
            if !self.symbol(';') {
                break;
            }
        }
        Ok(steps)
    }

    fn step(&mut self) -> Result<TxStep> {
        if self.takes("beside") {
            return Ok(TxStep::Beside(self.change()?));
        }
        if self.takes("save") {
            return Ok(TxStep::Save);
        }
        if self.takes("undo") {
            return Ok(TxStep::Undo(self.number("the number of a place")?));
        }
        if self.takes("checkpoint") {
            return Ok(TxStep::Checkpoint);
        }
        let rest = self.tokens.clone();
        let keyspace = self.keyspace();
        if self.takes("get") {
            return Ok(TxStep::Get(keyspace, self.pattern("a key")?));
        }
        if self.takes("lock") {
            return Ok(TxStep::GetForUpdate(keyspace, self.pattern("a key")?));
        }
        let prefix = self.takes("prefix");
        if prefix || self.takes("range") {
            return match self.range(prefix)? {
                Read::Range(span, walk @ (Walk::Forward | Walk::Backward), limit) => {
                    Ok(TxStep::Range {
                        keyspace,
                        span,
                        back: walk == Walk::Backward,
                        limit,
                    })
                }
                _ => Err(Error::invalid("a transaction reads from one end")),
            };
        }
        self.tokens = rest;
        Ok(TxStep::Change(self.change()?))
    }

    /// The records of an ingest.
    fn ingested(&mut self) -> Result<Vec<(Pattern, Pattern)>> {
        let mut records = Vec::new();
        while self.has_word() {
            records.push((self.pattern("a key")?, self.pattern("a value")?));
            if !self.symbol(';') {
                break;
            }
        }
        Ok(records)
    }

    /// The conditions of a batch, in front of its changes.
    fn required(&mut self) -> Result<Vec<Change>> {
        let mut required = Vec::new();
        loop {
            let rest = self.tokens.clone();
            let keyspace = self.keyspace();
            let value = match self.takes("require") {
                true => true,
                false if self.takes("lack") => false,
                false => {
                    self.tokens = rest;
                    return Ok(required);
                }
            };
            let key = self.pattern("a key")?;
            let value = match value {
                true => Some(self.pattern("a value")?),
                false => None,
            };
            required.push(Change::of(&keyspace, key, value));
            if !self.symbol(';') {
                return Ok(required);
            }
        }
    }

    fn conditional(
        &mut self,
        keyspace: String,
        read: impl FnOnce(&mut Self) -> Result<Conditional>,
    ) -> Result<Operation> {
        let how = read(self)?;
        Ok(Operation::Conditional { keyspace, how })
    }

    fn value_or_absent(&mut self) -> Result<Option<Pattern>> {
        match self.takes("absent") {
            true => Ok(None),
            false => self.pattern("a value, or absent").map(Some),
        }
    }

    fn operation(&mut self) -> Result<Operation> {
        let snapshot = self.snapshot();
        let keyspace = self.keyspace();
        let verb = self.name("an operation")?;
        let read = match verb.as_str() {
            "get" => Some(Read::Get(self.pattern("a key")?)),
            "contains" => Some(Read::Contains(self.pattern("a key")?)),
            "multi" => {
                let mut keys = Vec::new();
                while self.has_word() {
                    keys.push(self.pattern("a key")?);
                }
                Some(Read::MultiGet(keys))
            }
            "first" => Some(Read::First),
            "last" => Some(Read::Last),
            "count" => Some(Read::Count),
            "range" | "prefix" => Some(self.range(verb == "prefix")?),
            "open" => {
                let name = self.name("a name for the range")?;
                let prefix = self.takes("prefix");
                if !prefix && !self.takes("range") {
                    return Err(Error::invalid("open NAME range … or open NAME prefix …"));
                }
                Some(Read::Open(name, self.span(prefix)?))
            }
            _ => None,
        };
        if let Some(read) = read {
            return Ok(Operation::Read {
                snapshot,
                keyspace,
                read,
            });
        }
        if snapshot.is_some() {
            return Err(Error::invalid("only reads go to a snapshot"));
        }
        Ok(match verb.as_str() {
            "put" => {
                let (key, value) = (self.pattern("a key")?, self.pattern("a value")?);
                Operation::Put {
                    keyspace,
                    key,
                    value,
                    durability: self.durability(),
                }
            }
            "delete" => {
                let key = self.pattern("a key")?;
                Operation::Delete {
                    keyspace,
                    key,
                    durability: self.durability(),
                }
            }
            "merge" => {
                let (key, operand) = (self.pattern("a key")?, self.pattern("an operand")?);
                Operation::Merge {
                    keyspace,
                    key,
                    operand,
                    durability: self.durability(),
                }
            }
            "erase" => Operation::Erase {
                keyspace,
                span: self.erased()?,
                durability: self.durability(),
            },
            "batch" => {
                let durability = self.durability();
                Operation::Batch {
                    changes: self.changes()?,
                    durability,
                }
            }
            "ingest" => Operation::Ingest {
                keyspace,
                records: self.ingested()?,
            },
            "insert" => self.conditional(keyspace, |line| {
                let key = line.pattern("a key")?;
                Ok(Conditional::Insert(key, line.pattern("a value")?))
            })?,
            "swap" => self.conditional(keyspace, |line| {
                Ok(Conditional::Swap {
                    key: line.pattern("a key")?,
                    expected: line.value_or_absent()?,
                    new: line.value_or_absent()?,
                })
            })?,
            "replace" => self.conditional(keyspace, |line| {
                let key = line.pattern("a key")?;
                Ok(Conditional::Replace(key, line.pattern("a value")?))
            })?,
            "update" => self.conditional(keyspace, |line| {
                let key = line.pattern("a key")?;
                Ok(Conditional::Update(key, line.pattern("the front")?))
            })?,
            "take" => self.conditional(keyspace, |line| {
                Ok(Conditional::Take(line.pattern("a key")?))
            })?,
            "pop" => self.conditional(keyspace, |line| {
                let last = line.takes("last");
                match last || line.takes("first") {
                    true => Ok(Conditional::Pop { last }),
                    false => Err(Error::invalid("a pop reads: pop first, or pop last")),
                }
            })?,
            "guarded" => {
                let durability = self.durability();
                Operation::Guarded {
                    required: self.required()?,
                    changes: self.changes()?,
                    durability,
                }
            }
            "transact" => {
                let snapshot = self.takes("snapshot");
                let durability = self.durability();
                Operation::Transact {
                    snapshot,
                    steps: self.steps()?,
                    durability,
                }
            }
            "next" | "back" => {
                let range = self.name("a range")?;
                Operation::Next {
                    range,
                    count: self.number("a count")?,
                    back: verb == "back",
                }
            }
            "shut" => Operation::Shut {
                range: self.name("a range")?,
            },
            "snapshot" => Operation::Snapshot {
                name: self.name("a name")?,
            },
            "release" => Operation::Release {
                name: self.name("a snapshot")?,
            },
            "create" => Operation::Create {
                keyspace: self.name("a keyspace")?,
            },
            "drop" => Operation::Drop {
                keyspace: self.name("a keyspace")?,
            },
            "clear" => Operation::Clear { keyspace },
            "keyspaces" => Operation::Keyspaces,
            "checkpoint" => Operation::Checkpoint,
            "flush" => Operation::Flush,
            "chi" if self.takes("auto") => Operation::Chi { distance: None },
            "chi" => Operation::Chi {
                distance: Some(self.number("a checkpoint distance")?),
            },
            "dial" => Operation::Dial {
                keyspace,
                distance: if self.takes("auto") {
                    None
                } else {
                    Some(self.number("a checkpoint distance")?)
                },
            },
            "memory" => Operation::Memory {
                kib: self.number("KiB of memory")?,
            },
            "pass" => Operation::Pass {
                ms: self.number("milliseconds")?,
            },
            "reopen" => {
                let dropped = self.takes("dropped");
                let inspected = self.takes("inspected");
                let vary = if self.takes("vary") {
                    self.number("a seed")?
                } else {
                    0
                };
                Operation::Reopen(Reopen {
                    dropped,
                    inspected,
                    vary,
                })
            }
            _ => return Err(Error::invalid("no such operation").with("operation", verb)),
        })
    }

    fn value_or_none(&mut self) -> Result<Option<Vec<u8>>> {
        if self.takes("none") {
            Ok(None)
        } else {
            Ok(Some(self.pattern("a value or none")?.bytes()))
        }
    }

    fn records(&mut self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        if self.takes("nothing") || self.takes("none") {
            return Ok(records);
        }
        while self.has_word() {
            let key = self.pattern("a key")?.bytes();
            if !self.symbol('=') {
                return Err(Error::invalid("records read key=value"));
            }
            records.push((key, self.pattern("a value")?.bytes()));
        }
        Ok(records)
    }

    fn expected(&mut self, operation: &Operation) -> Result<Expected> {
        if self.takes("error") {
            return Ok(Expected::Failed(self.name("a kind of error")?));
        }
        let answer = match operation {
            Operation::Read { read, .. } => match read {
                Read::Get(_) => Answer::Value(self.value_or_none()?),
                Read::Contains(_) => self.expected_flag()?,
                Read::MultiGet(_) => {
                    let mut values = Vec::new();
                    while self.has_word() {
                        values.push(self.value_or_none()?);
                    }
                    Answer::Values(values)
                }
                Read::Count => {
                    if !self.takes("about") {
                        return Err(Error::invalid("a count reads: about N"));
                    }
                    return Ok(Expected::About(self.number("a count")?));
                }
                Read::First | Read::Last | Read::Range(..) => return self.expected_records(),
                Read::Open(..) => Answer::Done,
            },
            Operation::Next { .. } | Operation::Transact { .. } => return self.expected_records(),
            Operation::Conditional { how, .. } => match how {
                Conditional::Pop { .. } => return self.expected_records(),
                Conditional::Swap { .. } => self.expected_flag()?,
                _ => Answer::Value(self.value_or_none()?),
            },
            Operation::Keyspaces => {
                let mut names = Vec::new();
                while self.has_word() {
                    names.push(self.name("a keyspace")?);
                }
                Answer::Names(names)
            }
            _ => Answer::Done,
        };
        if matches!(answer, Answer::Done) && !self.takes("done") {
            return Err(Error::invalid(
                "this operation answers `done`, or `error KIND`",
            ));
        }
        Ok(Expected::Exactly(answer))
    }

    fn expected_flag(&mut self) -> Result<Answer> {
        let yes = self.takes("yes");
        match yes || self.takes("no") {
            true => Ok(Answer::Flag(yes)),
            false => Err(Error::invalid("yes or no")),
        }
    }

    fn expected_records(&mut self) -> Result<Expected> {
        // `3 records` is a count; `3=x` is a record.
        let mut ahead = self.tokens.clone();
        let count = ahead.next();
        if let (Some(Token::Word { text: count, .. }), Some(Token::Word { text, .. })) =
            (count, ahead.next())
            && text == "records"
        {
            let count = count.parse().map_err(|_| Error::invalid("N records"))?;
            self.tokens = ahead;
            return Ok(Expected::Records(count));
        }
        Ok(Expected::Exactly(Answer::Records(self.records()?)))
    }
}

/// One line; none if it is empty.
fn parse_line(line: &str) -> Result<Option<(Operation, Option<Expected>)>> {
    let tokens = tokens(line)?;
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut line = Line {
        tokens: tokens.into_iter().peekable(),
    };
    let operation = line.operation()?;
    let expected = match line.tokens.next_if_eq(&Token::Arrow) {
        Some(_) => Some(line.expected(&operation)?),
        None => None,
    };
    match line.tokens.next() {
        None => Ok(Some((operation, expected))),
        Some(token) => Err(Error::invalid("more on the line than its operation takes")
            .with("from", format!("{token:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{Generator, Profile};

    fn parse(line: &str) -> (Operation, Option<Expected>) {
        parse_line(line)
            .unwrap_or_else(|e| panic!("{line}: {e}"))
            .expect("an operation")
    }

    #[test]
    fn printed_operations_parse_again() {
        for seed in 0..20 {
            let generator = Generator::new(seed, Profile::random(&mut Random::new(seed), 4000));
            for operation in generator.take(500) {
                let line = operation.to_string();
                assert_eq!(parse(&line).0, operation, "{line}");
            }
        }
    }

    #[test]
    fn answers_are_parsed_by_their_operation() {
        let (_, expected) = parse("@a multi x y -> 1 none # and a comment");
        let values = Answer::Values(vec![Some(b"1".to_vec()), None]);
        assert!(expected.as_ref().is_some_and(|e| e.allows(&values)));
        let (_, expected) = parse("range -> 2 records");
        let two = Answer::Records(vec![(vec![], vec![]), (vec![1], vec![])]);
        assert!(expected.as_ref().is_some_and(|e| e.allows(&two)));
        assert!(!expected.is_some_and(|e| e.allows(&Answer::Records(vec![]))));
        let (_, expected) = parse("range -> 2=x");
        assert!(!expected.is_some_and(|e| e.allows(&two)));
        let (_, expected) = parse("drop default -> error InvalidArgument");
        let failed = Answer::Failed(terrapin_base::ErrorKind::InvalidArgument, String::new());
        assert!(expected.is_some_and(|e| e.allows(&failed)));
    }

    #[test]
    fn mistakes_in_a_script_name_their_line() {
        for line in [
            "put a",
            "fly",
            "get a b",
            "range -> a",
            "put \"a 1",
            "for 0..2",
            "%s put a 1",
            "get ~x@3",
            "pop",
            "swap a 1",
            "swap a 1 2 -> done",
        ] {
            let error = Script::parse("bad", &format!("put a 1\n{line}\n")).expect_err(line);
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn loops_become_their_lines() {
        let lines = expand("for 3..9 by 2 put k{} v{}@9 -> done").unwrap();
        assert_eq!(
            lines,
            [
                "put k000003 v000003@9 -> done",
                "put k000005 v000005@9 -> done",
                "put k000007 v000007@9 -> done"
            ]
        );
        let mut shuffled = expand("for 0..50 shuffled 3 delete {}").unwrap();
        assert_ne!(shuffled, expand("for 0..50 delete {}").unwrap());
        shuffled.sort();
        assert_eq!(shuffled, expand("for 0..50 delete {}").unwrap());
    }
}
