//! What a damaged trie still holds. Each sound block gives its messages, oldest first for each key:
//! the runs of each leaf, from the oldest to the newest. A message is certain if no damaged place
//! of a newer run may have had its key. Lists of hashes are not needed.

use terrapin_base::{Error, Result};
use terrapin_pages::group::{RescuedPart, rescue_group};
use terrapin_pages::{PageKind, PageRef, PageStore};
use terrapin_structure::Rescued;

use crate::digits::{Fanout, Stretch};
use crate::format::{Child, Leaf, Node, Root, RunRef};
use crate::node::root_place;

/// A range of keys: from the first one to below the second. `None` is the end of all keys.
type Span = (Vec<u8>, Option<Vec<u8>>);

fn has((from, to): &Span, key: &[u8]) -> bool {
    &from[..] <= key && to.as_ref().is_none_or(|to| key < &to[..])
}

fn span_of(stretch: Stretch) -> Span {
    let (lo, hi) = stretch.keys();
    (
        lo.map_or_else(Vec::new, |key| key.to_vec()),
        hi.map(|key| key.to_vec()),
    )
}

/// Gives all that is sound below a root.
pub(crate) fn rescue(store: &PageStore, root: &Root, rescued: &mut dyn Rescued) -> Result<()> {
    let Root::Trie(trie) = root else {
        return Ok(());
    };
    let mut rescue = Rescue { store, rescued };
    rescue.node(&trie.node, root_place(trie), trie.fanout)
}

struct Rescue<'a> {
    store: &'a PageStore,
    rescued: &'a mut dyn Rescued,
}

impl Rescue<'_> {
    fn node(&mut self, page: &PageRef, place: (Fanout, Stretch), fanout: Fanout) -> Result<()> {
        let read = self.store.read_page(page, PageKind::TrieNode);
        let node = read.and_then(|content| Node::decode(&content, place.0, place.1));
        let node = match node {
            Err(error) if error.is_of_data() => return self.loses(&span_of(place.1), &error),
            node => node?,
        };
        for (number, child) in node.children.iter().enumerate() {
            let stretch = place.1.child(place.0, number);
            match child {
                None => {}
                Some(Child::Leaf(leaf)) => self.leaf(leaf, stretch)?,
                Some(Child::Node(child)) => self.node(&child.page, (fanout, stretch), fanout)?,
            }
        }
        Ok(())
    }

    fn leaf(&mut self, leaf: &Leaf, stretch: Stretch) -> Result<()> {
        // Damage of the runs so far, and where that of each run begins.
        let (mut lost, mut starts) = (Vec::new(), Vec::new());
        for run in &leaf.runs {
            starts.push(lost.len());
            self.find_damage(run, stretch, &mut lost)?;
        }
        for (run, start) in leaf.runs.iter().zip(starts).rev() {
            // Damage of a run is not newer than its own records.
            lost.truncate(start);
            self.give(run, &lost)?;
        }
        Ok(())
    }

    fn find_damage(&mut self, run: &RunRef, stretch: Stretch, lost: &mut Vec<Span>) -> Result<()> {
        let (first, last) = span_of(stretch);
        for number in 0..run.groups.len() {
            for part in self.parts(run, number)? {
                let RescuedPart::Lost { from, to, cause } = part else {
                    continue;
                };
                let span = (
                    from.unwrap_or_default().max(first.clone()),
                    match (to, &last) {
                        (Some(to), Some(last)) => Some(to.min(last.clone())),
                        (to, last) => to.or_else(|| last.clone()),
                    },
                );
                if span.1.as_ref().is_none_or(|to| span.0 < *to) {
                    self.loses(&span, &cause)?;
                    lost.push(span);
                }
            }
        }
        Ok(())
    }

    /// Gives the messages of a run's sound blocks.
    fn give(&mut self, run: &RunRef, lost: &[Span]) -> Result<()> {
        let mut key = Vec::new();
        for number in 0..run.groups.len() {
            for part in self.parts(run, number)? {
                let RescuedPart::Block(block) = part else {
                    continue;
                };
                for record in 0..block.len() {
                    block.key_into(record, &mut key);
                    let is_certain = !lost.iter().any(|span| has(span, &key));
                    self.rescued
                        .message(&key, block.message(record), is_certain)?;
                }
            }
        }
        Ok(())
    }

    fn parts(&self, run: &RunRef, number: usize) -> Result<Vec<RescuedPart>> {
        let group = &run.groups[number].group;
        match self.store.read_sound_parts(group) {
            Ok(image) => Ok(rescue_group(&image, group, self.store.unit())),
            Err(cause) if cause.is_of_data() => Ok(vec![RescuedPart::Lost {
                from: None,
                to: None,
                cause,
            }]),
            Err(error) => Err(error),
        }
    }

    fn loses(&mut self, (from, to): &Span, cause: &Error) -> Result<()> {
        self.rescued.lost(from, to.as_deref(), cause)
    }
}
