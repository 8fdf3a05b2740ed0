//! Stores that are closed, dropped and opened again, with the same options and with others.

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "closed and opened",
        options: |_| {},
        script: "\
put a 1
reopen
put b 2
reopen
delete a
reopen",
    },
    Workload {
        name: "dropped and recovered",
        options: |_| {},
        script: "\
put a 1
reopen dropped
put b 2 sync
reopen dropped
delete a
reopen dropped
put c 3",
    },
    Workload {
        name: "opened and left alone",
        options: |_| {},
        script: "\
reopen
reopen dropped
reopen dropped
reopen
reopen dropped",
    },
    Workload {
        name: "recovery replays more than a memtable",
        options: |c| c.chi = Some(64),
        script: "\
for 0..15 put k{} ~{}@2000
chi 1
reopen dropped
put a 1
reopen dropped",
    },
    Workload {
        name: "recovery copies the ring",
        options: |c| {
            c.chi = Some(64);
            c.sync_interval_ms = 1000;
        },
        script: "\
for 0..10 put k{} ~{}@1500
reopen dropped
for 0..10 put k{} ~1@1500
reopen dropped
delete k000001",
    },
    Workload {
        name: "recovery of keyspaces",
        options: |_| {},
        script: "\
create users
@users put a 1
create posts
checkpoint
drop posts
@users clear
@users put b 2
create later
@later put c 3
reopen dropped
drop users
reopen dropped
create users
@users put d 4",
    },
    Workload {
        name: "opened with other options each time",
        options: |c| c.chi = Some(4),
        script: "\
for 0..10 put k{} ~{}@300
reopen vary 1
for 0..10 put k{} ~1@300
reopen dropped vary 2
delete k000001
reopen dropped vary 3
for 0..5 put k{} ~2@300
reopen vary 4
put a 1 sync
reopen dropped vary 5",
    },
    Workload {
        name: "another ring each time",
        options: |c| c.memory_bytes = 2 << 20,
        script: "\
for 0..8 put k{} ~{}@700
reopen dropped vary 11
for 0..8 put k{} ~1@700
reopen dropped vary 12
for 0..8 put k{} ~2@700
reopen dropped vary 14
for 0..8 put k{} ~3@700
reopen dropped",
    },
    Workload {
        name: "inspected between lives",
        options: |_| {},
        script: "\
for 0..10 put k{} ~{}@200
reopen inspected
for 0..10 by 2 delete k{}
reopen dropped inspected
put a 1 sync
reopen dropped inspected",
    },
    Workload {
        name: "a tree that was left in the midst of its growth",
        options: |c| c.chi = Some(1),
        script: "\
for 0..30 put k{} ~{}@120
reopen dropped
for 30..60 put k{} ~{}@120
reopen dropped
for 0..60 by 2 delete k{}
reopen dropped
checkpoint",
    },
];
