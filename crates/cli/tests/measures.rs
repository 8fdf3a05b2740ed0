//! `bench ycsb` and `demo` run, and print what they promise.

mod common;

use common::{TestDirectory, fail, run, succeed, text};
use serde_json::Value;

const KEYS: [&str; 22] = [
    "phase",
    "threads",
    "records",
    "operations",
    "seconds",
    "ops_per_second",
    "latency_us",
    "user_bytes_written",
    "device_bytes_written",
    "device_bytes_read",
    "device_reads",
    "location_hits",
    "location_bytes",
    "log_bytes_written",
    "data_file_bytes_written",
    "write_amplification",
    "space_bytes",
    "space_amplification",
    "rss_peak_bytes",
    "cpu_seconds",
    "chi",
    "memory_bytes",
];

fn phases(arguments: &[&str]) -> Vec<Value> {
    let text =
        String::from_utf8(succeed(&[&["bench", "ycsb", "--json"], arguments].concat())).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn every_phase_is_one_object_with_exactly_the_promised_keys() {
    let all = [
        "--workloads",
        "load,a,b,c,d,e,f",
        "--records",
        "20000",
        "--operations",
        "5000",
        "--memory",
        "16MiB",
        "--chi",
        "2",
    ];
    let phases = phases(&all);
    let names: Vec<_> = phases
        .iter()
        .map(|p| p["phase"].as_str().unwrap())
        .collect();
    let expected = [
        "load", "settle", "a", "settle", "b", "settle", "c", "d", "settle", "e", "settle", "f",
        "settle",
    ];
    assert_eq!(names, expected);
    let mut promised: Vec<&str> = KEYS.to_vec();
    promised.sort_unstable();
    for phase in &phases {
        let mut keys: Vec<&str> = phase
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        keys.sort_unstable();
        assert_eq!(keys, promised);
        let mut percentiles: Vec<&str> = phase["latency_us"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        percentiles.sort_unstable();
        assert_eq!(percentiles, ["max", "p50", "p99", "p999", "p9999"]);
        assert_eq!(phase["chi"], 2);
        assert_eq!(phase["memory_bytes"], 16 << 20);
        assert_eq!(phase["threads"], 2);
    }
    let load = &phases[0];
    assert_eq!(load["records"], 20_000);
    assert_eq!(load["user_bytes_written"], 20_000 * 128);
    assert!(load["space_bytes"].as_u64().unwrap() > 0);
    assert!(load["rss_peak_bytes"].as_u64().unwrap() > 0);
}

#[test]
fn reads_run_on_records_of_an_earlier_load() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let run = |workloads: &str, records: &str, more: &[&str]| {
        let arguments = [
            text(&db),
            "--workloads",
            workloads,
            "--records",
            records,
            "--operations",
            "2000",
        ];
        phases(
            &[
                &arguments[..],
                &[
                    "--memory",
                    "16MiB",
                    "--value-bytes",
                    "40",
                    "--key-bytes",
                    "20",
                ],
                more,
            ]
            .concat(),
        )
    };
    let load = ["--threads", "3", "--compression", "lz4"];
    assert_eq!(run("load", "3000", &load).len(), 2);
    let read = run(
        "c,e",
        "3000",
        &[
            "--distribution",
            "uniform",
            "--threads",
            "1",
            "--durability",
            "sync",
        ],
    );
    assert_eq!(
        read.iter()
            .map(|p| p["phase"].as_str().unwrap())
            .collect::<Vec<_>>(),
        ["c", "e", "settle"]
    );
    let table = succeed(&[
        "bench",
        "ycsb",
        text(&db),
        "--workloads",
        "c",
        "--records",
        "3000",
        "--operations",
        "100",
        "--memory",
        "16MiB",
        "--value-bytes",
        "40",
        "--key-bytes",
        "20",
    ]);
    assert_eq!(String::from_utf8(table).unwrap().lines().count(), 2);
    let count = succeed(&["count", text(&db)]);
    // More records than exist, or values of another size, are refused before any work.
    for wrong in [
        ["--records", "9000", "--value-bytes", "40"],
        ["--records", "3000", "--value-bytes", "41"],
    ] {
        let arguments = [
            "bench",
            "ycsb",
            text(&db),
            "--workloads",
            "c",
            "--operations",
            "2000",
            "--key-bytes",
            "20",
        ];
        let error = fail(&[&arguments[..], &wrong].concat());
        assert!(
            error.contains("records of this run are not there"),
            "{error}"
        );
    }
    // A load refuses a database with records.
    let load = ["--workloads", "load", "--records", "10"];
    let error = fail(&[&["bench", "ycsb", text(&db)], &load[..]].concat());
    assert!(error.contains("leave load out"), "{error}");
    assert_eq!(succeed(&["count", text(&db)]), count);
}

#[test]
fn ycsb_leaves_the_checkpoint_distances_of_a_database_alone_unless_told() {
    let place = TestDirectory::new();
    let db = place.path("db");
    succeed(&["put", text(&db), "k", "v", "-k", "other"]);
    succeed(&["set", text(&db), "chi", "3", "-k", "other"]);
    succeed(&["set", text(&db), "chi", "2", "-k", "default"]);
    let ycsb = |workloads: &str, more: &[&str]| {
        let small = ["--records", "1000", "--operations", "100", "--workloads"];
        phases(&[&[text(&db)], &small[..], &[workloads], more].concat())
    };
    let distances = || -> Vec<(String, u64)> {
        let stat: Value = serde_json::from_slice(&succeed(&["stat", text(&db), "--json"])).unwrap();
        let keyspaces = stat["keyspaces"].as_array().unwrap().iter();
        let of = |k: &Value| {
            let name = k["name"].as_str().unwrap().to_owned();
            (name, k["options"]["checkpoint_distance"].as_u64().unwrap())
        };
        keyspaces.map(of).collect()
    };
    let both = |default| vec![("default".to_owned(), default), ("other".to_owned(), 3)];
    assert_eq!(distances(), both(2));
    assert_eq!(ycsb("load", &[])[0]["chi"], 2);
    assert_eq!(distances(), both(2));
    assert_eq!(ycsb("c", &["--chi", "4"])[0]["chi"], 4);
    assert_eq!(distances(), both(4));
    // So is the threshold of separation: stored, and left alone unless named.
    let separated = || {
        let stat: Value = serde_json::from_slice(&succeed(&["stat", text(&db), "--json"])).unwrap();
        let keyspaces = stat["keyspaces"].as_array().unwrap().clone();
        keyspaces[0]["options"]["separate_from"].clone()
    };
    ycsb("a", &["--separate", "4KiB"]);
    assert_eq!(separated(), 4096);
    ycsb("a", &[]);
    assert_eq!(separated(), 4096);
    ycsb("a", &["--separate", "none"]);
    assert_eq!(separated(), Value::Null);
}

#[test]
fn the_demo_prints_its_steps_and_leaves_no_files() {
    let place = TestDirectory::new();
    let quick = [
        "--records",
        "20000",
        "--updates",
        "5000",
        "--memory",
        "16MiB",
    ];
    let run = |more: &[&str]| {
        String::from_utf8(succeed(&[&["demo"], &quick[..], more].concat())).unwrap()
    };
    let story = run(&[]);
    for word in [
        "20,000 records",
        "point reads",
        "prefix",
        "χ",
        "reopened",
        "sound",
        "peak memory",
    ] {
        assert!(story.contains(word), "{word}: {story}");
    }
    let directory = story
        .split_whitespace()
        .nth(2)
        .unwrap()
        .trim_end_matches(',');
    assert!(
        directory.contains("terrapin-temporary-demo") && !std::path::Path::new(directory).exists(),
        "{directory}"
    );
    let file = place.write("few.tsv", "a\t1\nb\t2\n");
    let kept = place.path("kept");
    let story = run(&[text(&kept), "--file", text(&file)]);
    assert!(story.contains("2 records, 4 bytes\n"), "{story}");
    // Rates, ratios and χ mean nothing for four bytes.
    for noise in ["second", "µs", "χ", "device", "peak"] {
        assert!(!story.contains(noise), "{noise}: {story}");
    }
    let torn = place.write("torn.tsv", "a\t1\nb\n");
    let error = fail(&["demo", "--file", text(&torn)]);
    assert!(
        error.contains("torn.tsv") && error.contains("line 2"),
        "{error}"
    );
    let one = place.write("one.tsv", "a\t1\n");
    let story = run(&["--file", text(&one)]);
    assert!(story.contains("1 record, 2 bytes\n"), "{story}");
    assert!(!story.contains("1 records"), "{story}");
    assert_eq!(succeed(&["scan", text(&kept), "--keys-only"]), b"a\nb\n");
    assert!(fail(&["demo", text(&kept)]).contains(text(&kept)));
}

#[test]
fn the_demo_shows_the_first_of_a_prefix_and_figures_as_json() {
    let place = TestDirectory::new();
    let file = place.write("p.tsv", "apple/3\tc\napple/1\ta\napple/2\tb\n");
    let demo = ["demo", "--file", text(&file), "--memory", "8MiB"];
    let story = String::from_utf8(succeed(&demo)).unwrap();
    let shown = "prefix \"apple/\": 3 records, the first 2:\n      \"apple/1\"  \"a\"\n      \"apple/2\"  \"b\"\n";
    assert!(story.contains(shown), "{story}");
    let kept = place.path("kept");
    let arguments = [&demo[..], &[text(&kept), "-k", "fruit", "--json"]].concat();
    let figures = String::from_utf8(succeed(&arguments)).unwrap();
    let steps: Vec<Value> = figures
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<_> = steps.iter().map(|s| s["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["load", "prefix", "scan", "reopen", "end"]);
    assert_eq!(
        (&steps[0]["records"], &steps[1]["records"]),
        (&Value::from(3), &Value::from(3))
    );
    let count = ["count", text(&kept), "-k", "fruit"];
    assert_eq!(succeed(&count), b"3\n");
}

#[test]
fn a_benchmark_uses_the_keyspace_that_it_is_given() {
    let place = TestDirectory::new();
    let db = place.path("db");
    let load = ["--workloads", "load", "--records", "1000", "-k", "bench"];
    phases(&[&[text(&db)], &load[..]].concat());
    assert_eq!(succeed(&["count", text(&db), "-k", "bench"]), b"1000\n");
    assert_eq!(succeed(&["count", text(&db)]), b"0\n");
}

#[test]
fn a_sweep_over_chi_writes_less_at_each_step() {
    let arguments = "bench chi --json --largest 4 --records 30000 --operations 500 --batch-unit 64KiB --memory 16MiB";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let text = String::from_utf8(succeed(&arguments)).unwrap();
    let steps: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let distances: Vec<_> = steps.iter().map(|s| s["chi"].as_u64().unwrap()).collect();
    assert_eq!(distances, [1, 2, 4]);
    let written: Vec<_> = steps
        .iter()
        .map(|s| s["tree_amplification"].as_f64().unwrap())
        .collect();
    assert!(written.is_sorted_by(|a, b| a > b), "{written:?}");
    for step in &steps {
        assert!(step["log_amplification"].as_f64().unwrap() > 1.0);
        assert!(step["gets"]["device_reads"].as_f64().unwrap() >= 0.0);
        assert!(step["scans"]["ops_per_second"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_sweep_to_a_small_chi_has_the_memory_that_a_database_needs() {
    let arguments =
        "bench chi --json --largest 1 --records 2000 --operations 50 --batch-unit 64KiB";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let text = String::from_utf8(succeed(&arguments)).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn bench_space_prints_writes_and_space_for_each_bound() {
    let arguments = [
        "bench",
        "space",
        "--json",
        "--records",
        "30000",
        "--memory",
        "8MiB",
        "--bounds",
        "1.15,none",
    ];
    let text = String::from_utf8(succeed(&arguments)).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let [tight, loose] = &lines[..] else {
        panic!("two bounds, {} lines", lines.len());
    };
    assert_eq!(
        (tight["bound"].as_f64(), loose["bound"].is_null()),
        (Some(1.15), true)
    );
    let figure = |of: &Value, name: &str| of[name].as_f64().unwrap();
    for space in [tight, loose] {
        let data = figure(space, "data_bytes");
        assert_eq!(data, 30_000.0 * 128.0);
        assert!(figure(space, "checkpoints") > 1.0);
        assert!(figure(space, "mean_bytes") >= data);
        assert!(figure(space, "peak_bytes") >= figure(space, "max_bytes"));
        assert_eq!(figure(&space["overwrite"], "user_bytes"), 2.0 * data);
        assert!(figure(&space["overwrite"], "amplification") > 1.0);
    }
    let pages = |of: &Value| figure(&of["overwrite"], "pages_amplification");
    assert!(
        pages(tight) > pages(loose),
        "less space costs writes: {text}"
    );
    let refusal = run(&["bench", "space", "--bounds", "much"]);
    assert_eq!(refusal.status.code(), Some(2));
    // The records are all there and right: the suite reads them at its end.
    let large = "bench space --json --records 500 --value-bytes 16000 --memory 8MiB --bounds 1.3 --separate 4KiB";
    let large: Vec<_> = large.split(' ').collect();
    let text = String::from_utf8(succeed(&large)).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let refusal = run(&["bench", "space", "--separate", "7"]);
    assert_eq!(refusal.status.code(), Some(2));
}

#[test]
fn bench_growth_prints_the_cost_of_a_record_as_data_grows() {
    let arguments = "bench growth --json --records 10000,40000 --memory 8MiB --chi 1";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let text = String::from_utf8(succeed(&arguments)).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let of = |name: &str| -> Vec<f64> {
        lines
            .iter()
            .map(|line| line[name].as_f64().unwrap())
            .collect()
    };
    assert_eq!(of("records"), [10_000.0, 40_000.0]);
    let merges = of("merges");
    assert!(
        (merges[1] - merges[0] - 2.0).abs() < 0.01,
        "four times the data is merged twice more: {text}"
    );
    assert!(of("write_amplification").is_sorted(), "{text}");
    assert!(of("ops_per_second").iter().all(|&rate| rate > 0.0));
}

#[test]
fn reads_are_printed_beside_raw_reads_of_the_device() {
    let arguments = "bench reads --json --records 20000 --value-bytes 200 --memory 16MiB --keys 16 --turns 2 --time 20";
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let text = String::from_utf8(succeed(&arguments)).unwrap();
    assert_eq!(text.lines().count(), 2);
    for line in text.lines() {
        let turn: Value = serde_json::from_str(line).unwrap();
        for figure in [
            "device_reads_per_second",
            "keys_per_second",
            "device_bytes_per_second",
            "scan_bytes_per_second",
            "scan_record_bytes_per_second",
            "scan_share",
        ] {
            assert!(turn[figure].as_f64().unwrap() > 0.0, "{figure}: {line}");
        }
    }
}

#[test]
fn suites_measure_hashed_keyspaces_and_mixed_values() {
    let print = |arguments: &str| {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        String::from_utf8(succeed(&arguments)).unwrap()
    };
    let text = print("bench absent --json --structure hashed --records 3000 --gets 500 --turns 1");
    let turn: Value = serde_json::from_str(text.trim()).unwrap();
    assert!(turn["many_per_second"].as_f64().unwrap() > 0.0, "{text}");
    assert!(turn["first_absent_reads"].as_f64().unwrap() < 0.1, "{text}");
    let text = print(
        "bench recovery --json --structure hashed --records 3000 --operations 1000 --turns 1 --memory 64MiB --recovery-target 1",
    );
    let turn: Value = serde_json::from_str(text.trim()).unwrap();
    assert!(turn["replayed_records"].as_u64().unwrap() >= 3000, "{text}");
    let text = print(
        "bench ycsb --json --structure hashed -k hashed --records 2000 --operations 500 --value-bytes 120,248,1016 --workloads load,replace,c",
    );
    assert_eq!(text.lines().count(), 5, "{text}");
}
