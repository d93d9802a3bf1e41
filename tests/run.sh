#!/usr/bin/env bash
# Everything that is checked, in the order in which it is quickest to know: bash tests/run.sh
# (What takes longer, for the day before a release: bash tests/chaos.sh)
#
# Installs a Redis server if there is none. Ends at the first failure, and says how to run that part only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=examples/setup.sh
. examples/setup.sh

part() {
    say "$1"
    bash -c "$1" && return
    printf '\n== FAILED: %s\n' "$1" >&2
    printf '   To run only this part:  cd %q && %s\n' "$PWD" "$1" >&2
    exit 1
}

[ $# -eq 0 ] || die 'this takes no arguments; to run some tests only: cargo test --locked <part of their name>'
need_cargo
need_server
# Most tests wait most of the time.
export RUST_TEST_THREADS="${RUST_TEST_THREADS:-4}"
part 'cargo fmt --all --check'
part 'cargo clippy --locked --all-targets -- -D warnings'
part 'cargo clippy --locked --package relatch-flawed --test controls -- -D warnings'
part 'cargo test --locked'
part 'cargo test --locked --package relatch-flawed'
part 'RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps'
part 'cargo fmt --check --manifest-path benches/peers/Cargo.toml'
part 'cargo clippy --locked --all-targets --manifest-path benches/peers/Cargo.toml -- -D warnings'
part 'cargo test --locked --manifest-path benches/peers/Cargo.toml'
say 'all is well'
