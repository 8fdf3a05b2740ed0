//! A secondary index: users by their number, and their numbers by city. Both change in one batch,
//! so that neither is ever seen without the other, nor survives a crash without it.

use terrapin::{Database, Error, Keyspace, Result};

/// Number → city; and city, a zero byte, number → nothing.
struct Users {
    database: Database,
    users: Keyspace,
    by_city: Keyspace,
}

impl Users {
    /// Adds a user, or moves one. What it reads must not change before it writes: let one thread at
    /// a time write a user (`&mut`).
    fn put(&mut self, number: u64, city: &str) -> Result<()> {
        if city.contains('\0') {
            return Err(Error::invalid("a city has no zero byte").with("user", number));
        }
        let number = number.to_be_bytes(); // big-endian bytes sort like the numbers
        let mut batch = self.database.batch();
        if let Some(old) = self.users.get(number)? {
            batch.delete(&self.by_city, entry(&old, number));
        }
        batch.put(&self.users, number, city);
        batch.put(&self.by_city, entry(city.as_bytes(), number), "");
        self.database.write(batch)
    }

    /// The numbers of those who live in a city, in order.
    fn in_city(&self, city: &str) -> Result<Vec<u64>> {
        let prefix = entry(city.as_bytes(), []);
        let keys = self.by_city.prefix(&prefix).keys();
        keys.map(|key| number(&key?[prefix.len()..])).collect()
    }
}

fn number(key: &[u8]) -> Result<u64> {
    let bytes = key.try_into().map(u64::from_be_bytes);
    bytes.map_err(|_| Error::corrupt("an entry of the index does not end with a number"))
}

/// A key of the index. Cities have no zero bytes: so none is the start of another here.
fn entry<const N: usize>(city: &[u8], number: [u8; N]) -> Vec<u8> {
    [city, b"\0", &number].concat()
}

/// Runs it in a directory that is removed afterwards.
pub fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("terrapin-index-{}", std::process::id()));
    let database = Database::open(&directory)?;
    let mut users = Users {
        users: database.keyspace("users")?,
        by_city: database.keyspace("users by city")?,
        database: database.clone(),
    };
    for (number, city) in [(1, "Lisbon"), (2, "Lima"), (300, "Lisbon"), (1, "Lima")] {
        users.put(number, city)?;
    }
    assert_eq!(users.in_city("Lima")?, [1, 2]);
    assert_eq!(users.in_city("Lisbon")?, [300]);
    database.close()?;
    let _ = std::fs::remove_dir_all(directory);
    Ok(())
}
