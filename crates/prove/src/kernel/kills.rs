//! Layer `kills`: `kill -9` of a process that writes, opens or recovers, several times in one
//! directory. Everything it acknowledged is there (D6, D7), and a kill during the recovery changes
//! nothing.

use std::fs;
use std::path::Path;

use terrapin_model::Random;

use crate::Find;
use crate::kernel::judge::{Content, Survives, examine, judge, sound};
use crate::kernel::life::{Moment, copy, keep, live};
use crate::kernel::plan::Story;
use crate::kernel::report::Acknowledged;

/// Kills of one directory.
const KILLS: u64 = 5;

/// Runs one directory through [`KILLS`] kills.
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
        let death = Death {
            layer: "kills",
            unit,
            life,
            moment,
            acknowledged,
            survives: Survives::Acknowledged,
        };
        content = death.outlived(&story, &directory, scratch, &content, &mut random)?;
    }
    Ok(KILLS)
}

/// A death of a life.
pub(super) struct Death<'d> {
    pub layer: &'d str,
    pub unit: u64,
    pub life: u64,
    pub moment: Moment,
    /// The life's acknowledgements.
    pub acknowledged: Acknowledged,
    pub survives: Survives,
}

impl Death<'_> {
    /// Checks the content against the content before and the acknowledgements since. A find keeps a
    /// copy. Returns the new content.
    pub fn outlived(
        &self,
        story: &Story,
        directory: &Path,
        scratch: &Path,
        before: &Content,
        random: &mut Random,
    ) -> Result<Content, Find> {
        let (life, acknowledged) = (self.life, &self.acknowledged);
        let began = life > 0 || acknowledged.opened;
        let found = scratch.join("found");
        let _ = fs::remove_dir_all(&found);
        if directory.exists() {
            copy(directory, &found)?;
        }
        let outcome = survived(story, life, directory, began, random, |found| {
            judge(story, life, before, acknowledged, found, self.survives)
        });
        outcome.map_err(|find| {
            let (moment, steps) = (self.moment, acknowledged.count());
            let find = Find(format!("life {life}, {moment:?}, {steps} steps: {find}"));
            keep(&found, self.layer, self.unit, find)
        })
    }
}

/// Opens what a death left, judges it, and closes it, or leaves it as another death would. `began`
/// says whether the database had been open before, in this life or an earlier one.
fn survived(
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
