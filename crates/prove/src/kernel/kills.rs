//! `kill -9` of a process that writes, opens or recovers, several times in a row in one directory: everything that it had
//! acknowledged is there (D6, D7), and a kill of the recovery changes nothing.

use std::fs;
use std::path::Path;

use terrapin_model::Random;

use crate::Find;
use crate::kernel::judge::{Content, Survives, examine, judge, sound};
use crate::kernel::life::{Moment, copy, keep, live};
use crate::kernel::plan::Story;

/// Kills of one directory.
const KILLS: u64 = 5;

/// One directory through [`KILLS`] kills.
pub fn unit(unit: u64, scratch: &Path) -> Result<u64, Find> {
    let mut random = Random::new(unit ^ 0x6b69_6c6c);
    let story = Story::new(unit);
    let directory = scratch.join("database");
    let mut content = Content::default();
    for life in 0..KILLS {
        let moment = Moment::random(&mut random);
        let stderr = scratch.join("stderr");
        let acknowledged = live(&directory, unit, life, moment, &stderr, || Ok(()))
            .map_err(|find| Find(format!("life {life}, {moment:?}: {find}")))?;
        let began = life > 0 || acknowledged.opened;
        let found = scratch.join("found");
        let _ = fs::remove_dir_all(&found);
        if directory.exists() {
            copy(&directory, &found)?;
        }
        let outcome = survived(&story, life, &directory, began, &mut random, |found| {
            judge(
                &story,
                life,
                &content,
                &acknowledged,
                found,
                Survives::Acknowledged,
            )
        });
        content = outcome.map_err(|find| {
            let steps = acknowledged.count();
            let find = Find(format!("life {life}, {moment:?}, {steps} steps: {find}"));
            keep(&found, "kills", unit, find)
        })?;
    }
    Ok(KILLS)
}

/// Opens what a death left, has it judged, and leaves it closed, or as another death would. `began` tells that the database had been open
/// before, in this life or an earlier one.
pub fn survived(
    story: &Story,
    life: u64,
    directory: &Path,
    began: bool,
    random: &mut Random,
    judged: impl Fn(&Content) -> Result<(), Find>,
) -> Result<Content, Find> {
    let options = story.configuration(life + 1000).options();
    if random.one_in(2) && (began || directory.exists()) {
        sound(directory, "before the recovery", !began)?;
    }
    let database = examine(directory, &options)?;
    judged(&database.content)?;
    if random.one_in(3) {
        database.database.close()?;
    }
    let content = database.content;
    drop(database.database);
    sound(directory, "after the recovery", false)?;
    if random.one_in(3) {
        let again = examine(directory, &options)?;
        if again.content != content {
            return Err(Find("a second recovery changes the state".to_owned()));
        }
    }
    Ok(content)
}
