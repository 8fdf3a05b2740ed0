//! Judges a store's content after a death. Each thread's records must be those after some number of
//! its steps: at least the steps that had to survive, at most those it can have begun. Together
//! they must be a prefix of the commit order as far as time shows it: a step that returned before
//! another began comes first.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use terrapin::verify::verify;
use terrapin::{Database, ErrorKind, Options};
use terrapin_base::checksum::hash64;
use terrapin_model::Structures;

use crate::Find;
use crate::kernel::plan::{GUEST, KEYSPACES, Step, Story, THREADS, thread_of};
use crate::kernel::report::Acknowledged;

/// The loss that a death may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survives {
    /// No acknowledged step: the process was killed.
    Acknowledged,
    /// Steps not acknowledged as durable: the power failed.
    Synced,
}

/// Records of one thread: keyspace and key, and the value's hash. The steward's keyspace is a
/// record without a key.
type Records = BTreeMap<(&'static str, Vec<u8>), u64>;

/// A store's content by writing thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    threads: [Records; THREADS],
}

const NAMES: [&str; 3] = [KEYSPACES[0], KEYSPACES[1], GUEST];

impl Content {
    /// Reads everything forwards and backwards. The outer error is a find; the inner one is the
    /// database's.
    pub fn try_read(database: &Database) -> Result<terrapin::Result<Content>, Find> {
        let mut content = Content::default();
        let keyspaces = match database.keyspaces() {
            Ok(keyspaces) => keyspaces,
            Err(error) => return Ok(Err(error)),
        };
        for name in keyspaces.iter().map(|info| info.name.as_str()) {
            let records = match scan(database, name) {
                Ok(Some(records)) => records,
                Ok(None) => {
                    let find = format!("in {name} scans in both directions differ");
                    return Err(Find(find));
                }
                Err(error) => return Ok(Err(error)),
            };
            let known = NAMES.into_iter().find(|&known| known == name);
            if known == Some(GUEST) {
                content.threads[0].insert((GUEST, Vec::new()), 0);
            }
            for (key, value) in records {
                let (Some(name), Some(thread)) = (known, thread_of(&key)) else {
                    let find = format!("a record that no thread wrote: {name} {key:02x?}");
                    return Err(Find(find));
                };
                content.threads[thread].insert((name, key), value);
            }
        }
        Ok(Ok(content))
    }

    /// Reads everything, forwards and backwards.
    pub fn read(database: &Database) -> Result<Content, Find> {
        Ok(Content::try_read(database)??)
    }
}

/// Keys and hashes of values of a keyspace, in order.
type Hashes = Vec<(Vec<u8>, u64)>;

/// Reads a whole keyspace; none if a backward scan disagrees with a forward one.
fn scan(database: &Database, name: &str) -> terrapin::Result<Option<Hashes>> {
    let keyspace = database.open_keyspace(name)?;
    let read = |record: terrapin::Result<(terrapin::Slice, terrapin::Slice)>| {
        record.map(|(key, value)| (key.to_vec(), hash64(&value)))
    };
    let forwards = keyspace
        .iter()
        .map(read)
        .collect::<terrapin::Result<Vec<_>>>()?;
    let backwards = keyspace
        .iter()
        .rev()
        .map(read)
        .collect::<terrapin::Result<Vec<_>>>()?;
    let agree = forwards.iter().eq(backwards.iter().rev());
    Ok(agree.then_some(forwards))
}

/// A thread's records while its steps are replayed.
struct Walk {
    records: Records,
    fingerprint: u64,
}

fn fingerprint(at: &(&'static str, Vec<u8>), value: u64) -> u64 {
    let mut bytes = at.0.as_bytes().to_vec();
    bytes.push(0);
    bytes.extend_from_slice(&at.1);
    bytes.extend_from_slice(&value.to_le_bytes());
    hash64(&bytes)
}

impl Walk {
    fn new(records: &Records) -> Self {
        let sum = |sum: u64, (at, &value)| sum.wrapping_add(fingerprint(at, value));
        Walk {
            fingerprint: records.iter().fold(0, sum),
            records: records.clone(),
        }
    }

    fn set(&mut self, at: (&'static str, Vec<u8>), value: Option<u64>) {
        let before = match value {
            Some(value) => {
                self.fingerprint = self.fingerprint.wrapping_add(fingerprint(&at, value));
                self.records.insert(at.clone(), value)
            }
            None => self.records.remove(&at),
        };
        if let Some(before) = before {
            self.fingerprint = self.fingerprint.wrapping_sub(fingerprint(&at, before));
        }
    }

    fn guest(&self) -> (&'static str, Vec<u8>) {
        (GUEST, Vec::new())
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Write(changes, _) => {
                for change in changes {
                    let value = change.value.as_deref().map(hash64);
                    self.set((change.keyspace, change.key), value);
                }
            }
            Step::WriteGuest(change) => {
                if self.records.contains_key(&self.guest()) {
                    let value = change.value.as_deref().map(hash64);
                    self.set((GUEST, change.key), value);
                }
            }
            Step::CreateGuest => self.set(self.guest(), Some(0)),
            Step::ClearGuest | Step::DropGuest => {
                let drops = matches!(step, Step::DropGuest);
                let gone = self.records.keys().filter(|at| at.0 == GUEST);
                let gone: Vec<_> = gone
                    .filter(|at| drops || !at.1.is_empty())
                    .cloned()
                    .collect();
                gone.into_iter().for_each(|at| self.set(at, None));
            }
            Step::Checkpoint | Step::Flush | Step::Distance(..) => {}
        }
    }
}

/// The numbers of a thread's steps that explain the found records.
#[derive(Clone, Copy, Debug)]
struct StepCounts {
    least: usize,
    most: usize,
}

/// Whether a life's acknowledgements explain the content it left, given its initial content.
pub fn judge(
    story: &Story,
    life: u64,
    before: &Content,
    acknowledged: &Acknowledged,
    found: &Content,
    survives: Survives,
) -> Result<(), Find> {
    let lower = must_survive(story, life, acknowledged, survives);
    let mut held = Vec::new();
    for (thread, &lower) in lower.iter().enumerate() {
        let done = acknowledged.steps[thread].len();
        let begun = done + usize::from(acknowledged.opened);
        let wanted = Walk::new(&found.threads[thread]).fingerprint;
        let mut walk = Walk::new(&before.threads[thread]);
        let mut range: Option<StepCounts> = None;
        for count in 0..=begun {
            if walk.fingerprint == wanted {
                let least = range.map_or(count, |r| r.least);
                range = Some(StepCounts { least, most: count });
            }
            if count < begun {
                walk.take(story.step(life, thread, count as u32));
            }
        }
        match range {
            Some(range) if range.most >= lower => held.push(range),
            Some(range) => {
                return Err(Find(format!(
                    "thread {thread} did {done} steps, {} of which had to survive ({survives:?}); \
                     the store holds {}",
                    lower, range.most
                )));
            }
            None => {
                let difference = explain(story, life, thread, before, found, lower, begun);
                return Err(Find(format!(
                    "thread {thread} did {done} steps, {} of which had to survive ({survives:?}); the \
                     store holds the state after no number of them. {difference}",
                    lower
                )));
            }
        }
    }
    check_prefix(acknowledged, &held)
}

/// How many steps of each thread must be there.
fn must_survive(
    story: &Story,
    life: u64,
    acknowledged: &Acknowledged,
    survives: Survives,
) -> [usize; THREADS] {
    let mut lower = acknowledged.steps.each_ref().map(Vec::len);
    if survives == Survives::Acknowledged {
        return lower;
    }
    lower = [0; THREADS];
    // Every step that returned before this moment is durable.
    let mut through = 0;
    let settled = acknowledged.settled.unwrap_or([usize::MAX; THREADS]);
    for (thread, steps) in acknowledged.steps.iter().enumerate() {
        let steps = steps.iter().take(settled[thread]);
        for (index, &(began, _)) in steps.enumerate().rev() {
            let durable = match story.step(life, thread, index as u32) {
                Step::Write(_, sync) => sync,
                Step::Flush | Step::Checkpoint => true,
                _ => false,
            };
            if durable {
                lower[thread] = index + 1;
                through = through.max(began);
                break;
            }
        }
    }
    for (thread, steps) in acknowledged.steps.iter().enumerate() {
        let before = steps.partition_point(|&(_, ended)| ended < through);
        lower[thread] = lower[thread].max(before);
    }
    lower
}

fn check_prefix(acknowledged: &Acknowledged, held: &[StepCounts]) -> Result<(), Find> {
    for (thread, range) in held.iter().enumerate() {
        let Some(last) = range.least.checked_sub(1) else {
            continue;
        };
        let steps = &acknowledged.steps[thread];
        // A step that never returned began after the one before it returned.
        let began = match steps.get(last) {
            Some(&(began, _)) => began,
            None => steps.last().map_or(0, |&(_, ended)| ended),
        };
        for (other, range) in held.iter().enumerate() {
            let before = acknowledged.steps[other].partition_point(|&(_, ended)| ended < began);
            if range.most < before {
                return Err(Find(format!(
                    "not a prefix of the commits: step {last} of thread {thread} is there, and step {} of thread \
                     {other} is not, which had returned before that began",
                    range.most
                )));
            }
        }
    }
    Ok(())
}

/// The first records in which the content differs from the state after this many steps.
fn explain(
    story: &Story,
    life: u64,
    thread: usize,
    before: &Content,
    found: &Content,
    lower: usize,
    begun: usize,
) -> String {
    let mut text = String::new();
    for count in [lower, begun] {
        let mut walk = Walk::new(&before.threads[thread]);
        (0..count).for_each(|index| walk.take(story.step(life, thread, index as u32)));
        let found = &found.threads[thread];
        let mut keys: Vec<_> = found.keys().chain(walk.records.keys()).collect();
        keys.sort();
        keys.dedup();
        let differing: Vec<_> = keys
            .into_iter()
            .filter(|key| found.get(key) != walk.records.get(key))
            .collect();
        let _ = write!(
            text,
            "From {count} steps {} records differ",
            differing.len()
        );
        for key in differing.iter().take(3) {
            let show =
                |value: Option<&u64>| value.map_or("absent".to_owned(), |v| format!("{v:x}"));
            let (is, should) = (show(found.get(key)), show(walk.records.get(key)));
            let _ = write!(text, ", {} {:02x?}: {is}, should be {should}", key.0, key.1);
        }
        text.push_str(". ");
    }
    text
}

/// The content a death left, opened.
pub struct Examined {
    /// What it holds.
    pub content: Content,
    /// The open database.
    pub database: Database,
}

/// Opens a directory and reads everything.
pub fn examine(directory: &Path, options: &Options) -> Result<Examined, Find> {
    let database = options
        .open(directory)
        .map_err(|error| Find(format!("the open after a death: {error}")))?;
    let content = Content::read(&database)?;
    Ok(Examined { content, database })
}

/// Checks that `verify` finds nothing wrong. Before the first open ends there may be nothing to
/// verify.
pub fn sound(directory: &Path, when: &str, may_be_absent: bool) -> Result<(), Find> {
    let report = match verify(directory, &Structures::verify_options()) {
        Ok(report) => report,
        Err(error) if may_be_absent && error.kind() == ErrorKind::DatabaseNotFound => return Ok(()),
        Err(error) => return Err(Find(format!("verify {when}: {error}"))),
    };
    if report.is_sound() {
        return Ok(());
    }
    let findings: Vec<_> = report
        .findings
        .iter()
        .take(5)
        .map(|f| format!("{}: {}", f.place, f.message))
        .collect();
    Err(Find(format!("verify {when}: {}", findings.join("; "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: u64 = 3;

    /// The records of every thread after this many steps.
    fn after(story: &Story, steps: [usize; THREADS]) -> Content {
        let mut content = Content::default();
        for (thread, count) in steps.into_iter().enumerate() {
            let mut walk = Walk::new(&content.threads[thread]);
            (0..count).for_each(|index| walk.take(story.step(LIFE, thread, index as u32)));
            content.threads[thread] = walk.records;
        }
        content
    }

    /// All threads take their steps in turn, one after the other.
    fn in_turn(steps: usize) -> Acknowledged {
        let stamps = |thread: usize| {
            let began = move |index: usize| 2 * (index * THREADS + thread) as u64;
            (0..steps).map(move |i| (began(i), began(i) + 1)).collect()
        };
        Acknowledged {
            opened: true,
            steps: std::array::from_fn(stamps),
            settled: None,
        }
    }

    fn judged(story: &Story, found: &Content, survives: Survives) -> Result<(), Find> {
        judge(
            story,
            LIFE,
            &Content::default(),
            &in_turn(400),
            found,
            survives,
        )
    }

    #[test]
    fn all_acknowledged_steps_pass_with_or_without_the_interrupted_one() {
        let story = Story::new(5);
        for steps in [[400; THREADS], [400, 401, 400, 401]] {
            let found = after(&story, steps);
            judged(&story, &found, Survives::Acknowledged).unwrap();
            judged(&story, &found, Survives::Synced).unwrap();
        }
    }

    #[test]
    fn a_lost_step_a_torn_batch_and_a_revived_record_are_noticed() {
        let story = Story::new(5);
        let lost = after(&story, [400, 380, 400, 400]);
        judged(&story, &lost, Survives::Acknowledged).unwrap_err();
        let whole = after(&story, [400; THREADS]);
        let mut torn = whole.clone();
        torn.threads[2].pop_first();
        judged(&story, &torn, Survives::Acknowledged).unwrap_err();
        judged(&story, &torn, Survives::Synced).unwrap_err();
        let mut revived = whole;
        revived.threads[1].insert((KEYSPACES[0], vec![9, 9, 9, 9, 1]), 7);
        judged(&story, &revived, Survives::Synced).unwrap_err();
    }

    #[test]
    fn a_power_cut_may_lose_unsynced_steps_and_leave_a_prefix() {
        let story = Story::new(5);
        let acknowledged = in_turn(400);
        let lower = must_survive(&story, LIFE, &acknowledged, Survives::Synced);
        assert!(
            lower.iter().all(|&count| 100 < count && count <= 400),
            "{lower:?}"
        );
        let least = lower.into_iter().max().unwrap();
        judged(&story, &after(&story, [least; THREADS]), Survives::Synced).unwrap();
        let early = after(&story, [least - 40; THREADS]);
        assert!(
            judged(&story, &early, Survives::Synced)
                .unwrap_err()
                .0
                .contains("had to survive")
        );
        let held = |count| StepCounts {
            least: count,
            most: count,
        };
        check_prefix(&acknowledged, &[held(201), held(201), held(200), held(200)]).unwrap();
        let hole = [held(201), held(200), held(201), held(200)];
        check_prefix(&acknowledged, &hole).unwrap_err();
    }
}
