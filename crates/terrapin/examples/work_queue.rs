//! A queue of work that survives crashes: what is pushed is taken in order. What is taken and what
//! came of it are written in one batch, so that work that a crash interrupts is found again, and
//! what it writes there is written once. (What else it does may be done twice.)

use terrapin::{Batch, Database, Error, Keyspace, Result, Slice};

/// The work by its number, the next number, and the key of what was taken last.
struct Queue {
    database: Database,
    work: Keyspace,
    end: u64,
    taken: Slice,
}

impl Queue {
    fn open(database: &Database) -> Result<Self> {
        let work = database.keyspace("work")?;
        let end = match work.last()? {
            None => 0,
            Some((key, _)) => match key[..].try_into() {
                Ok(last) => u64::from_be_bytes(last) + 1,
                Err(_) => return Err(Error::corrupt("a key that is not a number")),
            },
        };
        Ok(Queue {
            database: database.clone(),
            work,
            end,
            taken: Slice::default(),
        })
    }

    /// Puts work at the end. `&mut`: one thread at a time gives numbers; share a queue in a mutex.
    fn push(&mut self, what: &str) -> Result<()> {
        self.work.put(self.end.to_be_bytes(), what)?; // big-endian bytes sort like the numbers
        self.end += 1;
        Ok(())
    }

    /// Does the first piece of work; false when there is none. What comes of it goes to the batch
    /// that takes it away.
    fn pop(&mut self, does: impl FnOnce(&[u8], &mut Batch)) -> Result<bool> {
        // Not `first()`: it would pass all that was taken and is not merged yet.
        let next = self.work.iter().after(&self.taken).limit(1).next();
        let Some((key, what)) = next.transpose()? else {
            return Ok(false);
        };
        let mut batch = self.database.batch();
        does(&what, &mut batch);
        batch.delete(&self.work, &key);
        self.database.write(batch)?;
        self.taken = key;
        Ok(true)
    }
}

/// Runs it in a directory that is removed afterwards.
pub fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("terrapin-queue-{}", std::process::id()));
    let database = Database::open(&directory)?;
    let done = database.keyspace("done")?;
    let mut queue = Queue::open(&database)?;
    queue.push("wash")?;
    queue.push("dry")?;
    while queue.pop(|what, batch| batch.put(&done, what, "done"))? {}
    assert!(done.contains("dry")? && queue.work.first()?.is_none());
    database.close()?;
    let _ = std::fs::remove_dir_all(directory);
    Ok(())
}
