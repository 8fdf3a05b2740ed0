//! The bytes of nodes and of root references: the only place that encodes or decodes them.
//!
//! A node page's content (the page itself adds magic, id and checksum), little-endian, `v` for varints:
//!
//! ```text
//! height u16 | replaced permille u16 | pivots u16 | levels u8 | zero u8
//! pivots times: lower bound (v length, bytes) | child
//!     child at height 1: group reference
//!     child above:       page reference (20 bytes) | records v | leaf bytes v
//! levels times: segments v, then for each
//!     group reference | min (v, bytes) | max (v, bytes) | live parts v, then for each
//!         pivot v (difference to the one before, less one; the first as it is) | records v | bytes v
//! ```
//!
//! A root reference: kind u8 (0 empty, 1 leaf, 2 node), then nothing, a group reference, or height u16 and a page reference.

use terrapin_base::codec::{Reader, put_prefixed, put_varint};
use terrapin_base::{Error, KEY_BYTES_MAX, Result};
use terrapin_pages::PageRef;
use terrapin_pages::group::GroupRef;

use crate::load::HEIGHT_MAX;
use crate::node::{Child, LivePart, Node, Pivot, Root, Segment};

/// Most buffer levels of a node: with 2^16 pivots no more are ever of use.
pub(crate) const LEVELS_MAX: usize = 16;
/// Most pivots of a node: live parts count them in 16 bits.
pub(crate) const PIVOTS_MAX: usize = u16::MAX as usize;
/// Least bytes of an encoded pivot, and of a segment: what counts on a page may claim is bounded by these.
const PIVOT_BYTES_MIN: usize = 11;
const SEGMENT_BYTES_MIN: usize = 16;

const ROOT_EMPTY: u8 = 0;
const ROOT_LEAF: u8 = 1;
const ROOT_NODE: u8 = 2;

impl Root {
    /// What the catalog stores.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Root::Empty => out.push(ROOT_EMPTY),
            Root::Leaf(group) => {
                out.push(ROOT_LEAF);
                group.encode(&mut out);
            }
            Root::Node(page, height) => {
                out.push(ROOT_NODE);
                out.extend_from_slice(&height.to_le_bytes());
                page.encode(&mut out);
            }
        }
        out
    }

    /// Reads what [`Root::encode`] wrote.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when the bytes are no root reference.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Root> {
        let mut reader = Reader::new("root reference", bytes);
        let root = match reader.u8()? {
            ROOT_EMPTY => Root::Empty,
            ROOT_LEAF => Root::Leaf(GroupRef::decode(&mut reader)?),
            ROOT_NODE => {
                let height = reader.u16()?;
                if height == 0 || height > HEIGHT_MAX {
                    return Err(reader.corrupt("impossible height").with("height", height));
                }
                Root::Node(PageRef::decode(&mut reader)?, height)
            }
            kind => return Err(reader.corrupt("unknown kind of root").with("kind", kind)),
        };
        if reader.remaining() != 0 {
            return Err(reader.corrupt("bytes behind the end"));
        }
        Ok(root)
    }
}

impl Node {
    /// The content of the node's page.
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Internal`] when it has more pivots or levels than a page can say.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(4096);
        let pivots = u16::try_from(self.pivots.len())
            .map_err(|_| Error::internal("too many pivots").with("pivots", self.pivots.len()))?;
        let levels = u8::try_from(self.levels.len())
            .ok()
            .filter(|&levels| usize::from(levels) <= LEVELS_MAX)
            .ok_or_else(|| Error::internal("too many levels").with("levels", self.levels.len()))?;
        out.extend_from_slice(&self.height.to_le_bytes());
        out.extend_from_slice(&self.replaced_permille.to_le_bytes());
        out.extend_from_slice(&pivots.to_le_bytes());
        out.extend_from_slice(&[levels, 0]);
        for pivot in &self.pivots {
            put_prefixed(&mut out, &pivot.lower);
            match &pivot.child {
                Child::Leaf(group) => group.encode(&mut out),
                Child::Node {
                    page,
                    records,
                    leaf_bytes,
                } => {
                    page.encode(&mut out);
                    put_varint(&mut out, *records);
                    put_varint(&mut out, *leaf_bytes);
                }
            }
        }
        for level in &self.levels {
            put_varint(&mut out, level.len() as u64);
            for segment in level {
                segment.encode(&mut out);
            }
        }
        Ok(out)
    }

    /// Decodes a page's content. Memory is bounded by the bytes' length and a constant factor, whatever they say (D8).
    ///
    /// # Errors
    ///
    /// [`terrapin_base::ErrorKind::Corrupt`] when no node can be like that: see the rules in [`crate::node`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Node> {
        let mut reader = Reader::new("node", bytes);
        let height = reader.u16()?;
        let replaced_permille = reader.u16()?;
        let pivots = usize::from(reader.u16()?);
        let levels = usize::from(reader.u8()?);
        let zero = reader.u8()?;
        let possible = (1..=HEIGHT_MAX).contains(&height)
            && replaced_permille <= 1000
            && (1..=reader.remaining() / PIVOT_BYTES_MIN).contains(&pivots)
            && levels <= LEVELS_MAX
            && zero == 0;
        if !possible {
            return Err(reader.corrupt("impossible header"));
        }
        let mut node = Node {
            height,
            replaced_permille,
            pivots: Vec::with_capacity(pivots),
            levels: Vec::with_capacity(levels),
        };
        for number in 0..pivots {
            let lower = key(&mut reader)?;
            let ascends = match node.pivots.last() {
                None => lower.is_empty(),
                Some(before) => before.lower < lower,
            };
            if !ascends {
                return Err(reader.corrupt("pivots do not ascend").with("pivot", number));
            }
            let child = if height == 1 {
                Child::Leaf(GroupRef::decode(&mut reader)?)
            } else {
                let page = PageRef::decode(&mut reader)?;
                Child::Node {
                    page,
                    records: reader.varint()?,
                    leaf_bytes: reader.varint()?,
                }
            };
            node.pivots.push(Pivot {
                lower,
                child,
                pending_bytes: 0,
            });
        }
        for number in 0..levels {
            let count = count(&mut reader, SEGMENT_BYTES_MIN)?;
            let mut level: Vec<Segment> = Vec::with_capacity(count);
            for _ in 0..count {
                let segment = Segment::decode(&mut reader, pivots)?;
                if level.last().is_some_and(|before| before.max >= segment.min) {
                    return Err(reader.corrupt("segments overlap").with("level", number));
                }
                level.push(segment);
            }
            node.levels.push(level);
        }
        if reader.remaining() != 0 {
            return Err(reader.corrupt("bytes behind the end"));
        }
        node.tidy();
        Ok(node)
    }
}

impl Segment {
    fn encode(&self, out: &mut Vec<u8>) {
        self.group.encode(out);
        put_prefixed(out, &self.min);
        put_prefixed(out, &self.max);
        put_varint(out, self.live.len() as u64);
        let mut next = 0;
        for part in &self.live {
            put_varint(out, u64::from(part.pivot) - next);
            next = u64::from(part.pivot) + 1;
            put_varint(out, u64::from(part.records));
            put_varint(out, part.bytes);
        }
    }

    fn decode(reader: &mut Reader<'_>, pivots: usize) -> Result<Segment> {
        let group = GroupRef::decode(reader)?;
        let min = key(reader)?;
        let max = key(reader)?;
        let count = count(reader, 3)?;
        if min > max || count == 0 {
            return Err(reader.corrupt("empty segment").with("page", group.id));
        }
        let mut live = Vec::with_capacity(count);
        let mut next = 0u64;
        for _ in 0..count {
            let pivot = reader
                .varint()?
                .checked_add(next)
                .filter(|&pivot| pivot < pivots as u64);
            let pivot = pivot.and_then(|pivot| u16::try_from(pivot).ok());
            let pivot =
                pivot.ok_or_else(|| reader.corrupt("live part of a pivot that is not there"))?;
            next = u64::from(pivot) + 1;
            let records = u32::try_from(reader.varint()?)
                .ok()
                .filter(|&records| records > 0);
            let records = records.ok_or_else(|| reader.corrupt("impossible live part"))?;
            live.push(LivePart {
                pivot,
                records,
                bytes: reader.varint()?,
            });
        }
        Ok(Segment {
            group,
            min,
            max,
            live,
        })
    }
}

fn key(reader: &mut Reader<'_>) -> Result<Box<[u8]>> {
    let key = reader.prefixed()?;
    if key.len() > KEY_BYTES_MAX {
        return Err(reader.corrupt("key too long").with("bytes", key.len()));
    }
    Ok(key.into())
}

/// A count of things that take at least `bytes_min` bytes each.
fn count(reader: &mut Reader<'_>, bytes_min: usize) -> Result<usize> {
    let count = reader.varint()?;
    usize::try_from(count)
        .ok()
        .filter(|&count| count <= reader.remaining() / bytes_min)
        .ok_or_else(|| reader.corrupt("count too large").with("count", count))
}
