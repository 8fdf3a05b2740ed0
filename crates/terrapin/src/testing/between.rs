//! A scene for tests: a view comes between the append and the publication of a write that depends
//! on a value with a deadline. A record before it that nobody publishes holds that publication up.
//! Only code inside of the engine can append such a record.

use std::thread;
use std::time::Duration;

use terrapin_base::checksum::hash64;
use terrapin_base::{Condition, Env, Error, KeyspaceId, Result};
use terrapin_disk::SimDisk;
use terrapin_wal::{Append, Touch};

use crate::log_record::format::UNLOGGED;
use crate::types::options::Options;

/// Longest wait for the append of the write that depends on the value.
const WAIT: Duration = Duration::from_secs(10);

/// Checks that a view whose now is taken between append and publication of a conditional write
/// does not see the value expired that the write depends on: it does not see the write either.
///
/// # Errors
///
/// A description of what the check found instead.
pub fn check() -> std::result::Result<(), String> {
    scene().map_err(|error| error.to_string())
}

fn scene() -> Result<()> {
    let (disk, env) = (SimDisk::new(1), Env::threads());
    let rest = |time: Duration| {
        let until = env.now_ns() + time.as_nanos() as u64;
        env.wait(&Condition::delay_until(until)).map(drop)
    };
    let database = Options::small().open_on(env.clone(), disk.handle())?;
    let keyspace = database.default_keyspace();
    let (ttl, log) = (Duration::from_millis(300), database.core().log()?);
    // From now on the log notes what records touch.
    keyspace.insert_if_absent("b", "1")?;
    keyspace.put_with_ttl("a", "1", ttl)?;
    // With the first deadline the log notes now.
    rest(Duration::from_millis(50))?;
    let touches = [Touch::key(KeyspaceId::DEFAULT, b"c", hash64(b"c"))];
    let Append::Done(earlier) = log.try_append_touching(UNLOGGED, &[], &touches)? else {
        return Err(Error::internal("the log has no room"));
    };
    let tail = log.tail();
    let (seen, swapped) = thread::scope(|scope| {
        let swap = scope.spawn(|| keyspace.compare_and_swap("a", Some(b"1"), Some(b"2")));
        let until = env.now_ns() + WAIT.as_nanos() as u64;
        let mut rested = Ok(());
        while log.tail() == tail && env.now_ns() < until && rested.is_ok() {
            rested = rest(Duration::from_millis(1));
        }
        let seen = rested.and_then(|()| rest(ttl * 2));
        let seen = seen.and_then(|()| keyspace.get("a"));
        // Whatever happened: the swap waits for this.
        log.publish(&earlier);
        let swapped = swap.join();
        let swapped = swapped.map_err(|_| Error::internal("the swap panicked"));
        (seen, swapped.and_then(|swapped| swapped))
    });
    let after = keyspace.get("a")?;
    if swapped?.is_err() || seen?.as_deref() != Some(b"1") || after.as_deref() != Some(b"2") {
        let message = "a view between append and publication saw the value expired";
        return Err(Error::internal(message).with("value after the write", format!("{after:?}")));
    }
    // Now goes on.
    keyspace.put_with_ttl("a", "3", Duration::from_millis(1))?;
    rest(Duration::from_millis(20))?;
    if keyspace.contains("a")? {
        return Err(Error::internal("now stands after the write"));
    }
    drop(keyspace);
    database.close().map(drop)
}
