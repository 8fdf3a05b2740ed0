#!/bin/sh
# The whole flow on real input: a registry of millions of packages (about 257 MB of JSON) is imported
# with 64 MiB of memory, exported, queried, killed during an import, reopened and verified. Takes the
# JSON file's path, or fetches the npm package `all-the-package-repos` with npm. Prints each step's
# time.
set -eu
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
    file=$(realpath "$1")
else
    directory=$(mktemp -d)
    trap 'rm -rf "$directory"' EXIT INT TERM
    (cd "$directory" && npm pack --silent all-the-package-repos >/dev/null && tar -xzf ./*.tgz)
    file=$directory/package/data/packages.json
fi
TERRAPIN_REAL_INPUT=$file cargo test --release -p terrapin-cli --test real_input -- --nocapture
