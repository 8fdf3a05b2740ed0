//! A model of insert forecasting (TreeLine, §3.3) on the tree as it is: a merge streams the
//! segments that records touch into new ones. It counts segments that are split, for a synthetic
//! workload: inserts at hot places that move. Decision 0058 has its table.
//!
//! `cargo test -p terrapin-inplace --test forecast -- --nocapture` prints it.

/// Records of a full segment.
const FULL: usize = 500;
/// Merges that a forecast looks ahead.
const AHEAD: f64 = 4.0;
/// Least fill of a segment with slack.
const FILL_MIN: f64 = 0.55;
/// The limit, in expected inserts for each record, from which on a split is late.
const LATE_FROM: f64 = 0.1;
/// Segments before the first insert.
const SEGMENTS: usize = 400;
const MERGES: usize = 120;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Forecast {
    /// No slack.
    Off,
    /// A moving average of each segment's inserts, as the design has it.
    Average,
    /// What the generator will insert before the place moves.
    Perfect,
    /// No slack. A segment where the average expects inserts is split at twice the size.
    Late,
}

struct Workload {
    name: &'static str,
    /// Hot places at a time, and the share of the keys that one takes.
    places: usize,
    width: f64,
    /// Merges after which all places move, and inserts between two merges.
    stay: usize,
    inserts: usize,
}

struct Segment {
    /// The upper bound of its keys, exclusive.
    end: f64,
    keys: Vec<f64>,
    /// The moving average of its inserts.
    average: f64,
}

struct Random(u64);

impl Random {
    /// A number in [0, 1).
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// How the builder of page groups cuts a stream of this many records.
fn pieces(records: usize, target: usize) -> Vec<usize> {
    let (mut left, mut out) = (records, Vec::new());
    while 2 * left >= 3 * target {
        out.push(target);
        left -= target;
    }
    match 20 * left > 21 * target {
        true => out.extend([left / 2, left - left / 2]),
        false => out.push(left),
    }
    out
}

#[derive(Debug)]
struct Outcome {
    splits: usize,
    /// Records written for each insert.
    written: f64,
    /// Mean fill of a segment at the end.
    fill: f64,
}

fn run(workload: &Workload, forecast: Forecast, seed: u64) -> Outcome {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let each = 1.0 / SEGMENTS as f64;
    let mut line: Vec<_> = (0..SEGMENTS)
        .map(|number| Segment {
            end: (number + 1) as f64 * each,
            keys: (0..FULL)
                .map(|key| (number as f64 + (key as f64 + 0.5) / FULL as f64) * each)
                .collect(),
            average: 0.0,
        })
        .collect();
    let (mut splits, mut written, mut places) = (0, 0, Vec::new());
    for merge in 0..MERGES {
        if merge % workload.stay == 0 {
            places = (0..workload.places).map(|_| random.next()).collect();
        }
        let mut inserts: Vec<f64> = (0..workload.inserts)
            .map(|_| {
                let place = places[(random.next() * places.len() as f64) as usize];
                (place + random.next() * workload.width).min(0.999_999)
            })
            .collect();
        inserts.sort_by(f64::total_cmp);
        let (mut rest, mut next) = (&inserts[..], Vec::new());
        // Neighbours that are touched are one stream.
        let mut stream: Vec<Segment> = Vec::new();
        let mut begin = 0.0;
        for mut segment in line {
            let count = rest.partition_point(|key| *key < segment.end);
            let (own, behind) = rest.split_at(count);
            rest = behind;
            segment.average = (segment.average + own.len() as f64) / 2.0;
            if own.is_empty() {
                flush(
                    &mut stream,
                    begin,
                    &mut next,
                    &mut splits,
                    &mut written,
                    &|a, b, c| target(workload, forecast, (a, b, c), &places, merge),
                );
                begin = segment.end;
                next.push(segment);
                continue;
            }
            segment.keys.extend_from_slice(own);
            segment.keys.sort_by(f64::total_cmp);
            stream.push(segment);
        }
        flush(
            &mut stream,
            begin,
            &mut next,
            &mut splits,
            &mut written,
            &|a, b, c| target(workload, forecast, (a, b, c), &places, merge),
        );
        line = next;
    }
    let records: usize = line.iter().map(|segment| segment.keys.len()).sum();
    Outcome {
        splits,
        written: written as f64 / (workload.inserts * MERGES) as f64,
        fill: records as f64 / (line.len() * FULL) as f64,
    }
}

/// Writes a stream whose keys begin at `begin` as new segments.
fn flush(
    stream: &mut Vec<Segment>,
    begin: f64,
    next: &mut Vec<Segment>,
    splits: &mut usize,
    written: &mut usize,
    target: &dyn Fn((f64, f64), usize, f64) -> usize,
) {
    let Some(last) = stream.last() else {
        return;
    };
    let (end, before) = (last.end, stream.len());
    let average: f64 = stream.iter().map(|segment| segment.average).sum();
    let keys: Vec<f64> = stream.drain(..).flat_map(|segment| segment.keys).collect();
    let target = target((begin, end), keys.len(), average);
    let cut = pieces(keys.len(), target);
    *written += keys.len();
    *splits += cut.len().saturating_sub(before);
    let mut at = 0;
    for count in cut {
        let own = &keys[at..at + count];
        at += count;
        next.push(Segment {
            end: keys.get(at).copied().unwrap_or(end),
            keys: own.to_vec(),
            average: average * count as f64 / keys.len() as f64,
        });
    }
}

/// Records of a new segment. It is one of those that a stream of `records` records from `begin` to
/// `end` fills.
fn target(
    workload: &Workload,
    forecast: Forecast,
    ((begin, end), records, average): ((f64, f64), usize, f64),
    places: &[f64],
    merge: usize,
) -> usize {
    match forecast {
        Forecast::Off => FULL,
        Forecast::Average => {
            let fill = 1.0 / (1.0 + average * AHEAD / records as f64);
            (FULL as f64 * fill.max(FILL_MIN)) as usize
        }
        Forecast::Late => match average * AHEAD > LATE_FROM * records as f64 {
            true => 2 * FULL,
            false => FULL,
        },
        Forecast::Perfect => {
            let here = places.iter().filter(|place| (begin..end).contains(place));
            let left = workload.stay - 1 - merge % workload.stay;
            let more = left * workload.inserts / places.len() * here.count();
            let segments = (records + more).div_ceil(FULL);
            (records / segments).clamp(FULL / 10, FULL)
        }
    }
}

#[test]
fn slack_for_inserts_splits_more_segments_than_none() {
    let workload = |name, places, width, stay, inserts| Workload {
        name,
        places,
        width,
        stay,
        inserts,
    };
    let workloads = [
        workload("4 places", 4, 0.0005, 6, 3000),
        workload("16 places", 16, 0.0005, 6, 4000),
        workload("40 places", 40, 0.0005, 6, 6000),
        workload("40 places that stay long", 40, 0.0005, 20, 6000),
        workload("40 places that stay briefly", 40, 0.0005, 2, 6000),
        workload("3 wide places", 3, 0.05, 10, 6000),
    ];
    for workload in &workloads {
        let all = [
            Forecast::Off,
            Forecast::Average,
            Forecast::Perfect,
            Forecast::Late,
        ];
        let [off, average, perfect, late] = all.map(|forecast| run(workload, forecast, 1));
        let ratio = |other: &Outcome| off.splits as f64 / other.splits as f64;
        println!(
            "{}: splits without a forecast / with it {:.2}, with a perfect one {:.2}; records \
             written for an insert {:.2}, {:.2}, {:.2}; fill {:.2}, {:.2}, {:.2}; with late splits \
             {:.2}, {:.2}, {:.2}",
            workload.name,
            ratio(&average),
            ratio(&perfect),
            off.written,
            average.written,
            perfect.written,
            off.fill,
            average.fill,
            perfect.fill,
            ratio(&late),
            late.written,
            late.fill,
        );
        assert!(
            ratio(&average) < 1.0,
            "{}: {off:?} {average:?}",
            workload.name
        );
        assert!(
            ratio(&perfect) < 1.05,
            "{}: {off:?} {perfect:?}",
            workload.name
        );
        // Fewer splits alone save nothing: what is written grows.
        assert!(
            ratio(&late) > 1.3 && late.written > off.written,
            "{}: {off:?} {late:?}",
            workload.name
        );
        assert!(
            off.fill > average.fill,
            "{}: {off:?} {average:?}",
            workload.name
        );
    }
}
