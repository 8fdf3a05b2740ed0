//! Full disks: refused writes leave no trace, a recovery succeeds or says what it lacks, and writes
//! resume when there is room.

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "the disk fills and grows",
        options: |c| c.chi = Some(64),
        script: "\
disk 400
for 0..30 put k{} ~{}@5000
delete k000001
disk 67108864
pass 3000
put b 2 sync
checkpoint
put c 3",
    },
    Workload {
        name: "a recovery on a full disk",
        options: |c| c.chi = Some(8),
        script: "\
disk 500
for 0..30 put k{} ~{}@3000
checkpoint
disk 67108864
reopen dropped
pass 3000
put b 2 sync",
    },
    Workload {
        name: "the disk fills bit by bit",
        options: |c| c.chi = Some(4),
        script: "\
put z 0
checkpoint
disk 480
for 0..12 put k{} ~{}@2000
checkpoint
for 12..40 put k{} ~{}@2000
for 0..40 by 3 delete k{}
pass 3000
put a 1 sync
disk 67108864
pass 3000
checkpoint
put b 2 sync",
    },
    Workload {
        name: "a disk that checkpoints fill",
        options: |c| {
            c.chi = Some(1);
            c.segments_max = 2;
        },
        script: "\
for 0..10 put k{} ~{}@400
checkpoint
disk 440
for 0..20 put k{} ~1@1500
checkpoint
for 0..20 put k{} ~2@1500
checkpoint
for 0..20 by 2 delete k{} sync
pass 3000
put a 1
disk 67108864
checkpoint
put b 2",
    },
];
