use std::collections::BTreeMap;
use std::ops::Bound;

use terrapin_base::ErrorKind;
use terrapin_base::sync::Mutex;

use super::*;

/// A store in memory. `lossy` forgets one record in a hundred, `short` returns half of a range
/// of more than one record, `stubborn` drops updates.
#[derive(Default)]
struct Memory {
    records: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
    lossy: bool,
    short: bool,
    stubborn: bool,
}

impl Store for Memory {
    type Client<'a> = &'a Memory;
    fn client(&self) -> Result<&Memory> {
        Ok(self)
    }
    fn settle(&self) -> Result<()> {
        Ok(())
    }
    fn memory_bytes(&self) -> u64 {
        0
    }
}

impl Client for &Memory {
    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool> {
        let records = self.records.lock();
        out.clear();
        let Some(value) = records.get(key) else {
            return Ok(false);
        };
        out.extend_from_slice(value);
        Ok(true)
    }
    fn write(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if self.lossy && key[0] <= 2 {
            return Ok(());
        }
        let mut records = self.records.lock();
        if !self.stubborn || !records.contains_key(key) {
            records.insert(key.to_vec(), value.to_vec());
        }
        Ok(())
    }
    fn delete(&mut self, key: &[u8]) -> Result<()> {
        self.records.lock().remove(key);
        Ok(())
    }
    fn scan(
        &mut self,
        start: &[u8],
        count: usize,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        let records = self.records.lock();
        let count = if self.short && count > 1 {
            count / 2
        } else {
            count
        };
        let bounds = (Bound::Included(start), Bound::Unbounded);
        records
            .range::<[u8], _>(bounds)
            .take(count)
            .try_for_each(|(k, v)| show(k, v))
    }
}

fn config() -> Config {
    Config {
        records: 5000,
        loaded: false,
        shape: Records::new(8, 64).unwrap(),
        threads: 2,
        scan_records_max: SCAN_RECORDS_MAX,
        seed: 1,
    }
}

fn phase(workload: Workload, distribution: Distribution) -> Phase {
    let load = workload == Workload::Load;
    Phase {
        workload,
        distribution,
        operations: if load { 5000 } else { 4000 },
        time: None,
    }
}

fn all(distribution: Distribution) -> Vec<Phase> {
    use Workload::{A, B, C, D, E, F, Load, Replace};
    [Load, A, B, C, D, E, F, Replace]
        .map(|workload| phase(workload, distribution))
        .to_vec()
}

#[test]
fn every_workload_runs_and_checks_what_it_reads() {
    for distribution in [Distribution::Zipfian, Distribution::Uniform] {
        let (store, mut phases) = (Memory::default(), Vec::new());
        let directory = std::env::temp_dir();
        run(
            &config(),
            &all(distribution),
            &store,
            &directory,
            &Progress::default(),
            &mut |r| phases.push(r.clone()),
        )
        .unwrap();
        let names: Vec<_> = phases.iter().map(|p| p.phase).collect();
        let expected = [
            "load", "settle", "a", "settle", "b", "settle", "c", "d", "settle", "e", "settle", "f",
            "settle", "replace", "settle",
        ];
        assert_eq!(names, expected);
        assert_eq!(phases[0].operations, 5000);
        let inserted = phases.last().unwrap().records - 5000;
        assert!(
            (200..800).contains(&inserted),
            "D and E insert a twentieth of 8000 operations: {inserted}"
        );
        assert!(
            phases
                .iter()
                .all(|p| p.latency_us.max > 0.0 && p.latency_us.p50 <= p.latency_us.max)
        );
        assert_eq!(phases[6].user_bytes_written, 0, "C writes nothing");
    }
}

#[test]
fn runs_without_clients_or_records_are_refused() {
    let (store, progress) = (Memory::default(), Progress::default());
    for (threads, records) in [(0, 5000), (2, 0)] {
        let config = Config {
            threads,
            records,
            ..config()
        };
        let error = Driver::new(&config, &store, &std::env::temp_dir(), &progress).err();
        let kind = error.map(|error| error.kind());
        assert_eq!(kind, Some(ErrorKind::InvalidArgument));
    }
}

#[test]
fn a_run_needs_records_of_the_same_shape() {
    let (store, loaded) = (Memory::default(), config());
    let load = [phase(Workload::Load, Distribution::Uniform)];
    let (directory, progress) = (std::env::temp_dir(), Progress::default());
    run(&loaded, &load, &store, &directory, &progress, &mut |_| {}).unwrap();
    check_loaded(&loaded, &store).unwrap();
    for other in [
        Config {
            records: 5001,
            ..loaded
        },
        Config {
            shape: Records::new(8, 65).unwrap(),
            ..loaded
        },
        Config {
            shape: Records::new(9, 64).unwrap(),
            ..loaded
        },
    ] {
        let error = check_loaded(&other, &store).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    }
}

#[test]
fn a_lost_record_fails_the_run() {
    let store = Memory {
        lossy: true,
        ..Memory::default()
    };
    let directory = std::env::temp_dir();
    let error = run(
        &config(),
        &all(Distribution::Uniform),
        &store,
        &directory,
        &Progress::default(),
        &mut |_| {},
    );
    assert!(error.unwrap_err().to_string().contains("missing"));
}

#[test]
fn a_lost_update_fails_the_run_where_it_is_read_or_in_the_end() {
    let directory = std::env::temp_dir();
    for (read_in_between, workload) in [(true, Workload::A), (false, Workload::Overwrite)] {
        let store = Memory {
            stubborn: true,
            ..Memory::default()
        };
        let updates = Phase {
            operations: 40_000,
            ..phase(workload, Distribution::Uniform)
        };
        let phases = [phase(Workload::Load, Distribution::Uniform), updates];
        let (mut done, progress) = (0, Progress::default());
        let error = run(
            &config(),
            &phases,
            &store,
            &directory,
            &progress,
            &mut |_| {
                done += 1;
            },
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains("overwritten value"), "{error}");
        // Load and overwriting are reported, each with its settling.
        assert_eq!(done, if read_in_between { 2 } else { 4 });
    }
}

#[test]
fn a_scan_that_ends_too_soon_fails_the_run() {
    let store = Memory {
        short: true,
        ..Memory::default()
    };
    let phases = [Workload::Load, Workload::E].map(|w| phase(w, Distribution::Uniform));
    let error = run(
        &config(),
        &phases,
        &store,
        &std::env::temp_dir(),
        &Progress::default(),
        &mut |_| {},
    );
    assert!(error.unwrap_err().to_string().contains("ends before"));
}

#[test]
fn a_phase_ends_with_its_time_and_picks_other_records_the_second_time() {
    let (store, config, progress) = (Memory::default(), config(), Progress::default());
    let directory = std::env::temp_dir();
    let driver = Driver::new(&config, &store, &directory, &progress).unwrap();
    driver.write_first().unwrap();
    driver
        .phase(phase(Workload::Load, Distribution::Uniform))
        .unwrap();
    driver.read_all().unwrap();
    let endless = Phase {
        operations: u64::MAX,
        time: Some(Duration::from_millis(50)),
        ..phase(Workload::A, Distribution::Uniform)
    };
    let report = driver.phase(endless).unwrap();
    assert!(report.operations > 0 && report.seconds >= 0.05);
    assert_eq!(driver.begun.load(Ordering::Relaxed), 2);
    store.records.lock().pop_first();
    let error = driver.read_all().unwrap_err();
    assert!(error.to_string().contains("another number"), "{error}");
}
