//! Conditional writes, and batches with conditions.

use terrapin::Durability;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "conditional writes of one key",
        options: |_| {},
        script: "\
insert a 1
insert a 2
swap a 1 3
swap a 1 4
update a x
replace a 5@40
take a
swap a absent 6
swap a 6 absent
take a",
    },
    Workload {
        name: "synced conditional writes",
        options: |c| c.durability = Durability::Sync,
        script: "\
insert a 1@300
update a x
checkpoint
swap a absent 2
replace a 3@300
insert b 4
take a
pop last",
    },
    Workload {
        name: "a queue popped at both ends",
        options: |_| {},
        script: "\
for 0..8 put q{} {}@200
pop first
pop last
checkpoint
put q000000 again
pop first
pop first
flush
pop last
clear
pop first
put q000009 1
pop last",
    },
    Workload {
        name: "guarded batches across keyspaces",
        options: |_| {},
        script: "\
create users
guarded lack a ; @users lack ann ; put a 1 ; @users put ann 1
guarded lack a ; put a 2 ; @users put ann 2
guarded sync require a 1 ; @users require ann 1 ; put a 3@300 ; @users put ann 3@300
checkpoint
guarded require a 3@300 ; delete a ; @users delete ann ; put b 4
guarded lack a ; @users lack ann ; @users put bob 5 ; put a 5
@users clear
guarded @users lack bob ; put a 6 ; @users put bob 6",
    },
];
