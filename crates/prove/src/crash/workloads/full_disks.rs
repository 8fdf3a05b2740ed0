//! Disks without room: what is refused leaves no trace, recovery manages or says so, and writes resume when there is room.

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
];
