//! [`Backups`]: the pins of running backups. A pin keeps freed space. On a full disk the engine
//! takes all these pins back, so deletes make room. The backups then fail.

use std::sync::{Arc, Weak};

use terrapin_base::mutant;
use terrapin_base::sync::Mutex;
use terrapin_pages::Pin;

/// The pins of running backups.
#[derive(Default)]
pub(crate) struct Backups(Mutex<Vec<Weak<BackupPin>>>);

/// A pin that the engine may take back.
pub(crate) struct BackupPin(Mutex<Option<Pin>>);

impl Backups {
    /// Registers the pin of a backup.
    pub fn register(&self, pin: Pin) -> Arc<BackupPin> {
        let pin = Arc::new(BackupPin(Mutex::new(Some(pin))));
        let mut pins = self.0.lock();
        pins.retain(|pin| pin.strong_count() > 0);
        pins.push(Arc::downgrade(&pin));
        pin
    }

    /// Takes all pins back. Pages that they kept may be overwritten from now on.
    pub fn give_up(&self) {
        if mutant::active("backup-keeps-pin-on-full-disk") {
            return;
        }
        let pins = std::mem::take(&mut *self.0.lock());
        for pin in pins.iter().filter_map(Weak::upgrade) {
            let taken = pin.0.lock().take();
            drop(taken);
        }
    }
}

impl BackupPin {
    /// Whether the pin still keeps its pages.
    pub fn holds(&self) -> bool {
        self.0.lock().is_some()
    }
}
