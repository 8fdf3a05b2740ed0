//! Writes that depend on values with deadlines.

use terrapin_model::Deadlines;

use super::super::workload::Workload;

pub(super) const ALL: &[Workload] = &[Workload {
    name: "conditional writes and transactions over values with deadlines",
    options: |c| c.deadlines = Deadlines::Near,
    script: "\
create users
put a 1
put b 2
insert c 3
swap a 1 4
delete b
insert b 5
pass 1500
update a x
batch put a 6 ; delete c ; @users put ann 1
insert c 7
transact get a ; put a 8 ; delete b ; @users put bob 1
checkpoint
delete a
insert a 9
pass 1500
guarded require a 9 ; lack b ; put b 10 ; @users delete ann
transact sync range ; beside put c 11 ; put a 12
transact snapshot lock c ; delete c ; put b 13
delete c
take b
pop first
reopen dropped
insert c 14
delete c sync
insert c 15",
}];
