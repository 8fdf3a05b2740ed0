//! Writes finished value pages into a store.

use terrapin_base::Result;
use terrapin_pages::{PageStore, PageUse, SpaceClass};

use crate::page::PendingPage;
use crate::table::PartRef;

impl PendingPage {
    /// Writes the page. Returns where it is, and its parts. Not durable before a sync.
    ///
    /// # Errors
    ///
    /// Those of [`PageStore::write_values`]: no page owns the space then.
    pub fn write(
        mut self,
        store: &PageStore,
        class: SpaceClass,
    ) -> Result<(PageUse, Vec<PartRef>)> {
        let page = store.write_values(self.footer.bytes, class, |id, offset| {
            self.seal(id, offset);
            std::mem::take(&mut self.image)
        })?;
        let parts = self.directory.parts().iter().zip(&self.part_bytes);
        let parts = parts.map(|(part, &bytes)| PartRef {
            birth: part.birth,
            born_in: part.born_in,
            page,
            record_bytes: self.footer.record_bytes,
            directory_bytes: self.footer.directory_bytes,
            records: part.records().len() as u32,
            bytes: bytes.records,
            value_bytes: bytes.values,
            dead_records: 0,
            dead_value_bytes: 0,
            punched_records: 0,
        });
        Ok((page, parts.collect()))
    }
}
