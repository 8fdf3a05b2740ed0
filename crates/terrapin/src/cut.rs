//! When windows are cut, and how large they may grow: the dial χ, and its share of the memory budget.
//!
//! χ·L counts live bytes; garbage of as much again cuts early, or a hot key overwritten for ever would fill memory and the
//! log and never the window. With χ on auto the keyspaces that write share a sixth of the budget: an active and a sealed window with
//! arenas of 1.6 times what they hold then take about half of it at the peak.

use terrapin_base::sync::Ordering;

use terrapin_base::{Purpose, Result};

use crate::core::{Core, Install};
use crate::options::CheckpointDistance;
use crate::state::{KeyspaceShared, KeyspaceState, State};

/// The part of the budget that active windows on auto share.
const AUTO_SHARE: u64 = 6;

impl KeyspaceState {
    /// What the active window holds against its limit: live bytes or garbage, whichever is more.
    #[inline]
    pub fn active_bytes(&self) -> u64 {
        let window = &self.active.window;
        window.live_bytes().max(window.garbage_bytes())
    }

    /// Whether the active window has reached χ·L.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.active_bytes() >= self.shared.window_bytes.load(Ordering::Relaxed)
    }
}

impl Core {
    /// Cuts every full window that has no sealed one before it.
    pub fn cut_full(&self) {
        let mut install = self.install.lock();
        self.cut(&mut install, KeyspaceState::is_full);
        self.rebalance(&install);
    }

    /// Window memory is short and nothing sealed is about to free any: cuts the window with the largest arena.
    #[cold]
    pub fn cut_largest(&self) {
        let mut install = self.install.lock();
        if self.schedule.sealed_count() > 0 {
            return;
        }
        let state = self.state.load_full();
        let largest = state
            .keyspaces
            .iter()
            .filter(|k| k.sealed.is_none() && !k.active.window.is_empty())
            .max_by_key(|k| k.active.window.arena_bytes())
            .map(|k| k.id);
        if let Some(id) = largest {
            self.cut(&mut install, |k| k.id == id);
        }
    }

    /// Bytes of window memory above which the largest window is cut though it is not full.
    #[inline]
    pub fn window_memory_high(&self) -> u64 {
        self.budget.limit() / 10 * 6
    }

    /// Bytes of window memory above which writers wait for a merge to free some.
    #[inline]
    pub fn window_memory_max(&self) -> u64 {
        self.budget.limit() / 10 * 9
    }

    /// Sets every keyspace's window limit anew from χ, the memory budget, and how many keyspaces write.
    pub fn rebalance(&self, install: &Install) {
        let state = self.state.load();
        let writers = state
            .keyspaces
            .iter()
            .filter(|k| k.sealed.is_some() || !k.active.window.is_empty())
            .count();
        for keyspace in state.keyspaces.iter() {
            let distance = keyspace
                .options
                .checkpoint_distance
                .unwrap_or(install.checkpoint_distance);
            let bytes = self.window_bytes(distance, writers);
            keyspace.shared.window_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// χ·L for a keyspace when so many write.
    pub fn window_bytes(&self, distance: CheckpointDistance, writers: usize) -> u64 {
        let unit = self.settings.merge.group_bytes;
        let units = if self.schedule.space_is_short() {
            1
        } else {
            match distance {
                CheckpointDistance::Fixed(chi) => u64::from(chi),
                CheckpointDistance::Auto => {
                    self.budget.limit() / AUTO_SHARE / writers.max(1) as u64 / unit
                }
            }
        };
        // Memory may have shrunk below what a fixed χ was allowed under.
        units.clamp(1, self.settings.distance_max(self.budget.limit()).max(1)) * unit
    }

    /// χ in force.
    pub fn distance_in_force(&self, shared: &KeyspaceShared) -> u32 {
        let units = shared.window_bytes.load(Ordering::Relaxed) / self.settings.merge.group_bytes;
        u32::try_from(units).unwrap_or(u32::MAX).max(1)
    }

    /// Moves the memory budget. Caches shrink as they are used next; windows over their new share are cut at once.
    pub fn set_memory(&self, bytes: u64) -> Result<()> {
        self.health.check_open()?;
        let memory_min = crate::options::MEMORY_BYTES_MIN.max(4 * self.settings.ring_bytes);
        if bytes < memory_min {
            return Err(
                terrapin_base::Error::invalid("the memory budget is too small")
                    .with("memory", bytes)
                    .with("smallest", memory_min),
            );
        }
        {
            let install = self.install.lock();
            self.settings
                .check_distance(install.checkpoint_distance, bytes)?;
            for keyspace in self.state.load().keyspaces.iter() {
                let distance = keyspace
                    .options
                    .checkpoint_distance
                    .unwrap_or(install.checkpoint_distance);
                self.settings
                    .check_distance(distance, bytes)
                    .map_err(|e| e.with("keyspace", &keyspace.shared.name))?;
            }
            self.budget.set_limit(bytes);
            self.pool.set_bytes_max(bytes / crate::core::POOL_SHARE);
            self.rebalance(&install);
        }
        while self.records.shrink_step() {}
        while self.store.shrink() {}
        if self.log.is_some() {
            self.cut_full();
            if self.budget.used(Purpose::Window) > self.window_memory_high() {
                self.cut_largest();
            }
        }
        Ok(())
    }
}

/// Bytes of windows and of window memory, for metrics.
pub(crate) fn window_live_bytes(state: &State) -> u64 {
    state
        .keyspaces
        .iter()
        .map(|k| {
            k.active.window.live_bytes()
                + k.sealed
                    .as_ref()
                    .map_or(0, |s| s.records.window.live_bytes())
        })
        .sum()
}
