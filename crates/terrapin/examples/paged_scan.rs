//! Pages of what begins with a prefix, as a server hands them out: each request names the last key
//! that the client has, and nothing is kept between requests. Keys that come or go meanwhile do no
//! harm; who wants all pages of one moment reads them from a snapshot.

use terrapin::{Database, Keyspace, Result, Slice};

/// What a client gets.
struct Page {
    records: Vec<(Slice, Slice)>,
    /// Where the next page goes on; none behind the last.
    go_on: Option<Vec<u8>>,
}

/// The next `records_max` records of a prefix.
fn page(
    keyspace: &Keyspace,
    prefix: &str,
    go_on: Option<&[u8]>,
    records_max: usize,
) -> Result<Page> {
    // One more than are shown tells whether there are more.
    let mut range = keyspace.prefix(prefix).limit(records_max + 1);
    if let Some(last) = go_on {
        range = range.after(last);
    }
    let records: Vec<_> = range.by_ref().take(records_max).collect::<Result<_>>()?;
    let has_more = range.next().transpose()?.is_some();
    let last = records.last().filter(|_| has_more);
    Ok(Page {
        go_on: last.map(|(key, _)| key.to_vec()),
        records,
    })
}

/// Runs it in a directory that is removed afterwards.
pub fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("terrapin-pages-{}", std::process::id()));
    let database = Database::open(&directory)?;
    let posts = database.keyspace("posts")?;
    for day in 1..=25 {
        posts.put(format!("ann/{day:02}"), format!("What Ann did on {day}."))?;
        posts.put(format!("bob/{day:02}"), "Nothing happened.")?;
    }
    let (mut go_on, mut pages) = (None, Vec::new());
    loop {
        let page = page(&posts, "ann/", go_on.as_deref(), 10)?;
        pages.push(page.records.len());
        // A client would ask later. The key that it names may be gone by then.
        go_on = page.go_on;
        match &go_on {
            Some(last) => posts.delete(last)?,
            None => break,
        }
    }
    assert_eq!(pages, [10, 10, 5]);
    database.close()?;
    let _ = std::fs::remove_dir_all(directory);
    Ok(())
}
