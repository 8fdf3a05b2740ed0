//! A persistent map from small numbers to values. It is a tree of fixed fan-out. A copy shares
//! every node that does not change.
//!
//! The state and the catalog keep one entry for each keyspace in such a map. A change copies the
//! nodes on one path: O(log n), whatever else the map holds. A lookup follows one pointer per
//! level: one level up to number 63, two up to 4,095, three up to 262,143.
//!
//! Invariants: no map keeps an empty node. All leaves are equally deep.

use std::sync::Arc;

/// Bits of a number that select a child.
const BITS: u32 = 6;
/// Number of children of a node, and of values of a leaf.
pub(crate) const FANOUT: usize = 1 << BITS;

/// A persistent map from small numbers to values.
#[derive(Clone)]
pub(crate) struct IdMap<V> {
    root: Option<Arc<Node<V>>>,
    /// Levels of branches above the leaves.
    height: u32,
}

#[derive(Clone)]
#[expect(
    clippy::large_enum_variant,
    reason = "every node is in an `Arc`, and a box would cost each lookup a pointer"
)]
enum Node<V> {
    Branch([Option<Arc<Node<V>>>; FANOUT]),
    Leaf([Option<V>; FANOUT]),
}

impl<V> Default for IdMap<V> {
    fn default() -> Self {
        IdMap {
            root: None,
            height: 0,
        }
    }
}

/// The child that holds a number, in a node `level` levels above the leaves.
#[inline]
fn slot(number: u32, level: u32) -> usize {
    (number >> (BITS * level)) as usize % FANOUT
}

/// Whether a map of that height covers a number.
#[inline]
fn holds(height: u32, number: u32) -> bool {
    u64::from(number) >> (BITS * (height + 1)) == 0
}

impl<V> Node<V> {
    fn new(level: u32) -> Self {
        match level {
            0 => Node::Leaf(std::array::from_fn(|_| None)),
            _ => Node::Branch(std::array::from_fn(|_| None)),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Branch(children) => children.iter().all(Option::is_none),
            Node::Leaf(values) => values.iter().all(Option::is_none),
        }
    }

    /// The first value at or above a number that this node covers.
    fn next_from(&self, number: u32, level: u32) -> Option<(u32, &V)> {
        let first = slot(number, level);
        let above = number >> (BITS * level) >> BITS << BITS;
        match self {
            Node::Leaf(values) => {
                (first..FANOUT).find_map(|at| Some(((above | at as u32), values[at].as_ref()?)))
            }
            Node::Branch(children) => (first..FANOUT).find_map(|at| {
                let begins = (above | at as u32) << (BITS * level);
                children[at]
                    .as_ref()?
                    .next_from(number.max(begins), level - 1)
            }),
        }
    }
}

impl<V> IdMap<V> {
    /// The value of a number. O(log of the largest number).
    #[inline]
    pub fn get(&self, number: u32) -> Option<&V> {
        let mut node = self.root.as_deref()?;
        if !holds(self.height, number) {
            return None;
        }
        let mut level = self.height;
        loop {
            match node {
                Node::Leaf(values) => return values[number as usize % FANOUT].as_ref(),
                Node::Branch(children) => {
                    node = children[slot(number, level)].as_deref()?;
                    level -= 1;
                }
            }
        }
    }

    /// The first entry at or above a number.
    pub fn next_from(&self, number: u32) -> Option<(u32, &V)> {
        match holds(self.height, number) {
            true => self.root.as_ref()?.next_from(number, self.height),
            false => None,
        }
    }

    /// All entries at or above a number, in ascending order.
    pub fn iter_from(&self, number: u32) -> impl Iterator<Item = (u32, &V)> {
        let mut next = Some(number);
        std::iter::from_fn(move || {
            let found = self.next_from(next?)?;
            #[cfg(test)]
            tests::STEPS.set(tests::STEPS.get() + 1);
            next = found.0.checked_add(1);
            Some(found)
        })
    }
}

impl<V: Clone> IdMap<V> {
    /// Adds a value, or replaces the value of the same number. O(log of the largest number): copies
    /// those nodes of the path that other maps share.
    pub fn insert(&mut self, number: u32, value: V) {
        while !holds(self.height, number) {
            self.height += 1;
            if let Some(root) = self.root.take() {
                let mut above = Node::new(self.height);
                if let Node::Branch(children) = &mut above {
                    children[0] = Some(root);
                }
                self.root = Some(Arc::new(above));
            }
        }
        let mut level = self.height;
        let mut node = self
            .root
            .get_or_insert_with(|| Arc::new(Node::new(self.height)));
        loop {
            match Arc::make_mut(node) {
                Node::Leaf(values) => {
                    values[number as usize % FANOUT] = Some(value);
                    return;
                }
                Node::Branch(children) => {
                    let child = &mut children[slot(number, level)];
                    level -= 1;
                    node = child.get_or_insert_with(|| Arc::new(Node::new(level)));
                }
            }
        }
    }

    /// Removes a value. O(log of the largest number).
    pub fn remove(&mut self, number: u32) {
        if self.get(number).is_some()
            && let Some(root) = &mut self.root
            && remove(root, number, self.height)
        {
            *self = IdMap::default();
        }
    }
}

/// Removes a number that the node holds. Returns whether the node is empty afterwards.
fn remove<V: Clone>(node: &mut Arc<Node<V>>, number: u32, level: u32) -> bool {
    let node = Arc::make_mut(node);
    match node {
        Node::Leaf(values) => values[number as usize % FANOUT] = None,
        Node::Branch(children) => {
            let child = &mut children[slot(number, level)];
            if child
                .as_mut()
                .is_some_and(|child| remove(child, number, level - 1))
            {
                *child = None;
            }
        }
    }
    node.is_empty()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use terrapin_base::sync::thread_local;

    thread_local! {
        /// Number of values that iterators of all maps visited, for tests of costs.
        pub(crate) static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    fn check(map: &IdMap<u64>, model: &BTreeMap<u32, u64>) {
        assert!(map.iter_from(0).eq(model.iter().map(|(&n, v)| (n, v))));
        for probe in [0, 1, 63, 64, 4095, 4096, 262_143, 262_144, u32::MAX] {
            assert_eq!(map.get(probe), model.get(&probe));
            let next = model.range(probe..).next().map(|(&n, v)| (n, v));
            assert_eq!(map.next_from(probe), next);
        }
    }

    #[test]
    fn it_equals_a_sorted_map_and_copies_do_not_change() {
        let (mut map, mut model) = (IdMap::default(), BTreeMap::new());
        let mut kept = Vec::new();
        let mut seed = 1u64;
        for step in 0..6000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let random = (seed >> 33) as u32;
            // Dense small numbers, and some numbers of every size.
            let number = match random % 4 {
                0 => random.rotate_left(random % 32),
                _ => random / 4 % 300,
            };
            if random & 0x1000 == 0 {
                map.insert(number, step);
                model.insert(number, step);
            } else {
                map.remove(number);
                model.remove(&number);
            }
            if step % 1000 == 0 {
                kept.push((map.clone(), model.clone()));
            }
        }
        kept.push((map, model));
        kept.iter().for_each(|(map, model)| check(map, model));
    }

    #[test]
    fn an_empty_map_keeps_no_node() {
        let mut map = IdMap::default();
        map.insert(u32::MAX, 1);
        map.insert(5, 2);
        map.remove(u32::MAX);
        assert_eq!(map.get(5), Some(&2));
        map.remove(5);
        assert!(map.root.is_none() && map.next_from(0).is_none());
    }
}
