#!/usr/bin/env bash
# Tests the crates with unsafe code, and threads that go through them, under AddressSanitizer and
# LeakSanitizer. Arguments are those of `cargo test`; without any, the crates whose memory is unsafe.
# Needs no nightly toolchain.
#
# Memtables cut their nodes from large chunks, in which a sanitizer sees no bounds. Their tests
# therefore also use memtables in which each piece is an allocation of its own
# (`Memtable::new_for_memory_checkers`). The sanitizer sees only the ends of mapped files and buffers.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- --lib --tests -p terrapin-disk -p terrapin-memtable -p terrapin-recordcache

target=${CARGO_TARGET_DIR:-target}/asan
triple=$(rustc -vV | sed -n 's/^host: //p')
mkdir -p "$target"
export RUSTC_BOOTSTRAP=1 RUSTFLAGS="${RUSTFLAGS:-} -Zsanitizer=address"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_stack_use_after_return=1}"
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true

# Would it notice? One byte behind an allocation, through the same flags.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
cat >"$probe/probe.rs" <<'RUST'
fn main() {
    let bytes = vec![1u8; std::env::args().count() * 64];
    // SAFETY: there is none; the sanitizer must say so.
    println!("{}", unsafe { bytes.as_ptr().add(bytes.len()).read_volatile() });
}
RUST
rustc -Zsanitizer=address --edition 2024 -o "$probe/probe" "$probe/probe.rs"
if "$probe/probe" >"$probe/said" 2>&1 || ! grep -q heap-buffer-overflow "$probe/said"; then
    echo "AddressSanitizer did not notice a read behind an allocation" >&2
    exit 1
fi

cargo test --release --locked --target "$triple" --target-dir "$target" "$@"
