//! What a damaged tree still holds. Each sound block gives its messages, oldest first for each
//! key: the leaves, then the levels of the nodes above them, from the last to the first. A message
//! is certain if no damaged place above it may have had its key.

use std::sync::Arc;

use terrapin_base::{Error, Result};
use terrapin_pages::group::{GroupRef, RescuedPart, rescue_group};
use terrapin_pages::{PageKind, PageRef, PageStore};
use terrapin_structure::Rescued;

use crate::load::LoadedNode;
use crate::node::{Child, Node, Root, Segment};

/// A range of keys: from the first one to below the second. None is the end of all keys.
#[derive(Clone, Debug)]
struct Span {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
}

impl Span {
    fn has(&self, key: &[u8]) -> bool {
        &self.from[..] <= key && self.to.as_ref().is_none_or(|to| key < &to[..])
    }

    /// The part of both, if there is one.
    fn and(&self, other: &Span) -> Option<Span> {
        let from = self.from.clone().max(other.from.clone());
        let to = match (&self.to, &other.to) {
            (Some(a), Some(b)) => Some(a.min(b).clone()),
            (a, b) => a.clone().or_else(|| b.clone()),
        };
        let span = Span { from, to };
        span.to
            .as_ref()
            .is_none_or(|to| span.from < *to)
            .then_some(span)
    }
}

/// Gives all that is sound below a root.
pub(crate) fn rescue(store: &Arc<PageStore>, root: &Root, rescued: &mut dyn Rescued) -> Result<()> {
    let mut rescue = Rescue {
        store,
        rescued,
        lost: Vec::new(),
    };
    let all = Span {
        from: Vec::new(),
        to: None,
    };
    match root {
        Root::Empty => Ok(()),
        Root::Leaf(group, _) => rescue.leaf(group, &all),
        Root::Node(page, height) => rescue.node(page, *height, &all),
    }
}

struct Rescue<'a> {
    store: &'a Arc<PageStore>,
    rescued: &'a mut dyn Rescued,
    /// What damaged places above the present one may have had.
    lost: Vec<Span>,
}

impl Rescue<'_> {
    fn node(&mut self, page: &PageRef, height: u16, span: &Span) -> Result<()> {
        let read = self.store.read_page(page, PageKind::Node);
        let node = read
            .and_then(|content| LoadedNode::new(Node::decode(&content)?))
            .and_then(|node| match node.height == height {
                true => Ok(node),
                false => Err(Error::corrupt(
                    "a node has another height than its parent says",
                )),
            });
        let node = match node {
            Err(error) if error.is_of_data() => return self.loses(span, &error),
            node => node?,
        };
        let first = self.lost.len();
        // Where the damage of each level begins. A level is newer than those behind it.
        let mut starts = Vec::with_capacity(node.levels.len());
        for level in &node.levels {
            starts.push(self.lost.len());
            for segment in level {
                let live = live_spans(&node, segment, span);
                self.find_damage(&segment.group, &live)?;
            }
        }
        for (number, pivot) in node.pivots.iter().enumerate() {
            let Some(span) = pivot_span(&node, number).and(span) else {
                continue;
            };
            match &pivot.child {
                Child::Leaf(group) => self.leaf(group, &span)?,
                Child::Node { page, .. } => self.node(page, height - 1, &span)?,
            }
        }
        for (level, start) in node.levels.iter().zip(starts).rev() {
            self.lost.truncate(start);
            for segment in level {
                let live = live_spans(&node, segment, span);
                self.give(&segment.group, &live)?;
            }
        }
        self.lost.truncate(first);
        Ok(())
    }

    fn leaf(&mut self, group: &GroupRef, span: &Span) -> Result<()> {
        let spans = std::slice::from_ref(span);
        let depth = self.lost.len();
        self.find_damage(group, spans)?;
        // Damage of the leaf itself is not newer than its own records.
        self.lost.truncate(depth);
        self.give(group, spans)
    }

    /// Reports the damage of a group, and notes it as damage of a newer place.
    fn find_damage(&mut self, group: &GroupRef, spans: &[Span]) -> Result<()> {
        for part in self.parts(group)? {
            let RescuedPart::Lost { from, to, cause } = part else {
                continue;
            };
            let lost = Span {
                from: from.unwrap_or_default(),
                to,
            };
            for lost in spans.iter().filter_map(|span| lost.and(span)) {
                self.loses(&lost, &cause)?;
                self.lost.push(lost);
            }
        }
        Ok(())
    }

    /// Gives the messages of a group's sound blocks.
    fn give(&mut self, group: &GroupRef, spans: &[Span]) -> Result<()> {
        let mut key = Vec::new();
        for part in self.parts(group)? {
            let RescuedPart::Block(block) = part else {
                continue;
            };
            for number in 0..block.len() {
                block.key_into(number, &mut key);
                if spans.iter().any(|span| span.has(&key)) {
                    let is_certain = !self.lost.iter().any(|lost| lost.has(&key));
                    let message = block.message(number);
                    self.rescued.message(&key, message, is_certain)?;
                }
            }
        }
        Ok(())
    }

    fn parts(&self, group: &GroupRef) -> Result<Vec<RescuedPart>> {
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

    fn loses(&mut self, span: &Span, cause: &Error) -> Result<()> {
        self.rescued.lost(&span.from, span.to.as_deref(), cause)
    }
}

fn pivot_span(node: &LoadedNode, number: usize) -> Span {
    Span {
        from: node.pivots[number].lower.to_vec(),
        to: node.pivots.get(number + 1).map(|next| next.lower.to_vec()),
    }
}

/// The ranges in which a segment's messages count.
fn live_spans(node: &LoadedNode, segment: &Segment, span: &Span) -> Vec<Span> {
    let mut behind = segment.max.to_vec();
    behind.push(0);
    let own = Span {
        from: segment.min.to_vec(),
        to: Some(behind),
    };
    let live = segment.live.iter().map(|part| usize::from(part.pivot));
    let of_pivots = live
        .filter(|pivot| *pivot < node.pivots.len())
        .filter_map(|pivot| pivot_span(node, pivot).and(&own)?.and(span));
    of_pivots.collect()
}
