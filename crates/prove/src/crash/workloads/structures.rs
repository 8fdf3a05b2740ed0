//! Keyspaces of the plain structure, alone and beside those of the TurtleTree.

use terrapin_model::Structures;

use super::super::workload::Workload;

/// "users" and "events" have the plain structure, and so have runs; "default" and "posts" the
/// TurtleTree.
const PLAIN_BESIDE: Structures = Structures::Mixed(21);
/// "default" and "posts" have the plain structure; "users", "events" and runs the TurtleTree.
const PLAIN_DEFAULT: Structures = Structures::Mixed(16);

/// "default" is hashed, "users" has the TurtleTree.
const HASHED_DEFAULT: Structures = Structures::SomeHashed(3);

pub(super) const ALL: &[Workload] = &[
    Workload {
        name: "batches across keyspaces of two structures",
        options: |c| c.structures = PLAIN_BESIDE,
        script: "\
create users
create posts
create events
batch put a 1 ; @users put a 1 ; @posts put a 1 ; @events put a 1
batch sync put a 2 ; @users put a 2 ; @posts delete a ; @events put b 2
checkpoint
for 0..9 batch put k{} ~{}@150 ; @users put k{} ~{}@150 ; @posts put k{} ~{}@150 ; @events put k{} x
batch delete a ; @users delete a ; @posts put a 3 ; @events delete k000002
checkpoint
batch sync put a 4 ; @users put a 4@900 ; @events delete b
for 0..9 by 2 batch delete k{} ; @users delete k{} ; @posts delete k{} ; @events delete k{}
checkpoint
batch put z 5 ; @users put z 5 ; @posts put z 5 ; @events put z 5",
    },
    Workload {
        name: "the default keyspace plain, others beside it",
        options: |c| {
            c.structures = PLAIN_DEFAULT;
            c.chi = Some(1);
        },
        script: "\
create users
create posts
for 0..10 put k{} ~{}@200
for 0..10 batch @users put k{} ~{}@200 ; @posts put k{} ~{}@100
for 0..10 by 3 batch delete k{} ; @users delete k{} ; @posts delete k{}
batch sync put a 1 ; @users put a 1 ; @posts put a 1
reopen dropped
for 0..6 batch put k{} ~1@200 ; @posts put j{} ~1@200
checkpoint
put b 2 sync",
    },
    Workload {
        name: "plain keyspaces come and go",
        options: |c| c.structures = PLAIN_BESIDE,
        script: "\
create users
create posts
for 0..10 batch @users put k{} ~{}@200 ; @posts put k{} ~{}@200
checkpoint
@users clear
batch @users put a 1 ; @posts put a 1
checkpoint
drop users
create users
batch sync @users put b 2 ; @posts put b 2 ; put b 2
checkpoint
drop posts
@users clear
create events
batch @events put c 3 ; @users put c 3
checkpoint
drop users
put d 4 sync",
    },
    Workload {
        name: "plain pages and plain runs under held views",
        options: |c| {
            c.structures = Structures::Plain;
            c.chi = Some(16);
        },
        script: "\
create users
for 0..10 batch put k{} ~{}@150 ; @users put k{} ~{}@150
snapshot old
for 0..10 by 2 batch delete k{} ; @users put k{} ~1@150
pass 3000
checkpoint
%old get k000002
%old @users range
for 0..10 put k{} ~2@150
checkpoint
pass 3000
%old range
release old
checkpoint
put a 1",
    },
    Workload {
        name: "plain keyspaces on a full disk",
        options: |c| {
            c.structures = PLAIN_DEFAULT;
            c.group_bytes = 8 << 10;
        },
        script: "\
create users
put z 0
checkpoint
disk 500
for 0..5 put k{} ~{}@5000
checkpoint
for 5..18 put k{} ~{}@5000
for 0..18 by 3 delete k{}
@users put a ~1@2000
pass 3000
put a 1 sync
disk 67108864
pass 3000
checkpoint
batch sync put b 2 ; @users put b 2",
    },
    Workload {
        name: "records wait beside their leaves, and leaves are merged, split and joined",
        options: |c| {
            c.structures = Structures::InPlace;
            c.group_bytes = 2 << 10;
        },
        script: "\
for 0..60 put k{} ~{}@150
checkpoint
put k000007 ~1@150
put k000031 ~1@150
delete k000052
checkpoint
put k000007 ~2@150
delete k000031
checkpoint
for 10..50 delete k{}
checkpoint
put k000020 back
checkpoint
for 10..40 put k{} ~3@400
checkpoint
delete k000020 sync
checkpoint
put a 1",
    },
    Workload {
        name: "waiting records under held views",
        options: |c| {
            c.structures = Structures::InPlace;
            c.group_bytes = 2 << 10;
        },
        script: "\
create users
for 0..40 batch put k{} ~{}@150 ; @users put k{} ~{}@150
checkpoint
snapshot old
batch put k000005 ~1@150 ; @users delete k000005
pass 3000
checkpoint
%old get k000005
batch put k000006 ~1@150 ; @users put k000005 ~2@150
checkpoint
%old @users range
for 0..40 by 2 batch delete k{} ; @users put k{} ~3@150
pass 3000
checkpoint
%old range
release old
@users clear
checkpoint
put a 1",
    },
    Workload {
        name: "the page-grouped tree on a full disk",
        options: |c| {
            c.structures = Structures::InPlace;
            c.group_bytes = 8 << 10;
        },
        script: "\
put z 0
checkpoint
disk 500
for 0..5 put k{} ~{}@5000
checkpoint
for 5..18 put k{} ~{}@5000
for 0..18 by 3 delete k{}
pass 3000
put a 1 sync
disk 67108864
pass 3000
checkpoint
put b 2 sync",
    },
    Workload {
        name: "runs are appended, joined and rewritten, and leaves split and collapse",
        options: |c| {
            c.structures = HASHED_DEFAULT;
            c.group_bytes = 2 << 10;
        },
        script: "\
for 0..60 put k{} ~{}@150
checkpoint
put k000007 ~1@150
put k000031 ~1@150
delete k000052
checkpoint
put k000007 ~2@150
delete k000031
checkpoint
for 10..50 delete k{}
checkpoint
put k000020 back
checkpoint
for 10..40 put k{} ~3@400
checkpoint
for 0..60 by 2 delete k{}
checkpoint
delete k000020 sync
checkpoint
put a 1",
    },
    Workload {
        name: "hashed keyspaces beside others, under held views",
        options: |c| {
            c.structures = HASHED_DEFAULT;
            c.group_bytes = 2 << 10;
        },
        script: "\
create users
for 0..40 batch put k{} ~{}@150 ; @users put k{} ~{}@150
checkpoint
snapshot old
batch put k000005 ~1@150 ; @users delete k000005
pass 3000
checkpoint
%old get k000005
batch put k000006 ~1@150 ; @users put k000005 ~2@150
checkpoint
%old @users get k000005
for 0..40 by 2 batch delete k{} ; @users put k{} ~3@150
pass 3000
checkpoint
%old get k000007
release old
@users clear
checkpoint
put a 1
drop users
create users
batch put k000001 ~9@60 ; @users put k000001 ~9@60
checkpoint",
    },
    Workload {
        name: "the lazy-trie on a full disk",
        options: |c| {
            c.structures = HASHED_DEFAULT;
            c.group_bytes = 8 << 10;
        },
        script: "\
put z 0
checkpoint
disk 500
for 0..5 put k{} ~{}@5000
checkpoint
for 5..18 put k{} ~{}@5000
for 0..18 by 3 delete k{}
pass 3000
put a 1 sync
disk 67108864
pass 3000
checkpoint
put b 2 sync",
    },
    Workload {
        name: "tiered buffers: runs, merges of runs, leaves and appended leaves",
        options: |c| {
            c.structures = Structures::Tiered;
            c.group_bytes = 2 << 10;
            c.fanout = Some(4);
        },
        script: "\
for 0..60 put k{} ~{}@150
checkpoint
for 0..60 by 7 put k{} ~1@150
checkpoint
for 3..60 by 7 put k{} ~2@150
delete k000031 sync
checkpoint
for 0..60 by 5 put k{} ~3@150
checkpoint
for 60..90 put k{} ~4@150
checkpoint
for 90..120 put k{} ~5@150
put k000007 late
checkpoint
for 10..50 delete k{}
checkpoint
put k000020 back sync
checkpoint
put a 1",
    },
    Workload {
        name: "the structure changes between leveled and tiered, also under held views",
        options: |c| {
            c.structures = Structures::Changing(9);
            c.group_bytes = 2 << 10;
            c.fanout = Some(4);
        },
        script: "\
create users
for 0..40 batch put k{} ~{}@150 ; @users put k{} ~{}@150
checkpoint
snapshot old
for 0..40 by 3 batch put k{} ~1@150 ; @users delete k{}
checkpoint
%old @users range
chi 2
for 0..40 by 2 batch delete k{} ; @users put k{} ~3@150
pass 3000
checkpoint
%old range
release old
chi 3
for 1..40 by 4 put k{} ~5@150
checkpoint
@users clear
checkpoint
put a 1 sync",
    },
    Workload {
        name: "tiered buffers on a full disk",
        options: |c| {
            c.structures = Structures::Tiered;
            c.group_bytes = 8 << 10;
        },
        script: "\
put z 0
checkpoint
disk 500
for 0..5 put k{} ~{}@5000
checkpoint
for 5..18 put k{} ~{}@5000
for 0..18 by 3 delete k{}
pass 3000
put a 1 sync
disk 67108864
pass 3000
checkpoint
put b 2 sync",
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use terrapin::StructureId;

    #[test]
    fn the_mixes_are_what_their_names_say() {
        let plain = |mix: Structures| {
            let names = ["default", "users", "posts", "events"];
            names.map(|name| mix.of(name) == StructureId::PLAIN)
        };
        assert_eq!(plain(PLAIN_BESIDE), [false, true, false, true]);
        assert_eq!(plain(PLAIN_DEFAULT), [true, false, true, false]);
        let hashed = |name| HASHED_DEFAULT.of(name) == StructureId::HASHED;
        assert!(hashed("default") && !hashed("users"));
    }
}
